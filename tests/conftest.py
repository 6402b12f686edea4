"""Settings shared by all tests."""

import torch as th

# The networks of the tests are tiny: more threads only wait for each other
th.set_num_threads(1)
