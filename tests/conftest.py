"""Settings shared by all tests."""

import pytest
import torch as th

# The networks of the tests are tiny: more threads only wait for each other
th.set_num_threads(1)


@pytest.fixture(scope="session")
def local_ray():
    """A Ray cluster of two CPUs on this machine, for all tests of this process."""
    ray = pytest.importorskip("ray")
    # Ray's own, 15, makes starts of workers take ten times as long while other tests run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    yield ray
    ray.shutdown()
