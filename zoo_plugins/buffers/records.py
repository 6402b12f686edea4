"""Records that are fetched at once, in main memory or on a device."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th


class RecordLayout:
    """
    Where each field of a record is.

    Records are a structured array of shape (n_records,), or a tensor of bytes of shape (n_records, n_bytes), on any device.

    :param fields: NumPy dtype and shape of each field, by name
    """

    def __init__(self, fields: Mapping[str, tuple[Any, tuple[int, ...]]]):
        self.dtype = np.dtype([(name, dtype, shape) for name, (dtype, shape) in fields.items()], align=True)

    def zeros(self, n_records: int) -> np.ndarray:
        """
        Make records of zeros.

        :param n_records: Their number
        :return: structured array of shape (n_records,)
        """
        return np.zeros(n_records, self.dtype)

    def take(self, records: Any, rows: np.ndarray) -> Any:
        """
        Copy some records.

        :param records: Structured array, or tensor of bytes
        :param rows: Indices of records. Shape: (n,)
        :return: n records, of the same kind
        """
        if isinstance(records, np.ndarray):
            return records.take(rows)
        return records.index_select(0, th.from_numpy(rows).to(records.device))

    def put(self, records: Any, rows: np.ndarray | slice, values: np.ndarray) -> None:
        """
        Overwrite some records.

        :param records: Structured array, or tensor of bytes
        :param rows: Indices of records
        :param values: As many new ones, as a structured array
        """
        if isinstance(records, np.ndarray):
            # As bytes: NumPy copies structured values field by field
            as_bytes(records)[rows] = as_bytes(values)
        else:
            index = rows if isinstance(rows, slice) else th.from_numpy(rows).to(records.device)
            records[index] = th.from_numpy(as_bytes(values)).to(records.device)

    def fields(self, records: Any) -> dict[str, Any]:
        """
        See the fields of records.

        :param records: Structured array, or tensor of bytes
        :return: views of shape (n_records, *field_shape) by name: arrays, or tensors for records that are one
        """
        if isinstance(records, np.ndarray):
            return {name: records[name] for name in self.dtype.names or ()}
        views = {}
        for name, (dtype, offset) in (self.dtype.fields or {}).items():  # type: ignore[misc]
            column = records[:, offset : offset + dtype.itemsize].view(torch_dtype(dtype.base))
            views[name] = column.reshape(len(records), *dtype.shape)
        return views

    def move(self, records: Any, device: th.device | None) -> Any:
        """
        Bring records elsewhere, in one piece.

        :param records: Structured array, or tensor of bytes
        :param device: Where to, None for a structured array
        :return: records, not copied if they were there
        """
        if device is None:
            return records if isinstance(records, np.ndarray) else records.cpu().numpy().view(self.dtype).reshape(-1)
        return (th.from_numpy(as_bytes(records)) if isinstance(records, np.ndarray) else records).to(device)


def as_bytes(records: np.ndarray) -> np.ndarray:
    """
    See records as rows of bytes.

    :param records: A contiguous structured array. Shape: (n_records,)
    :return: view of shape (n_records, n_bytes)
    """
    return records.view(np.uint8).reshape(len(records), records.dtype.itemsize)


def torch_dtype(dtype: np.dtype[Any]) -> th.dtype:
    """
    Translate a dtype.

    :param dtype: NumPy's
    :return: PyTorch's
    """
    return th.from_numpy(np.empty(0, dtype)).dtype
