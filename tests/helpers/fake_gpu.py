"""A GPU that is not there: tensors that say they are on it, and keep their values on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda:0")
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_")  # from device to device
INDEXING = ("aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
PRIVATE = ("_ensureCUDADeviceGuardSet", "_set_only_lift_cpu_tensors", "_InferenceMode")  # of torch
JOINING = ("aten::cat", "aten::stack")  # even numbers must be on the same device


class OnGpu(Tensor):
    """A tensor on the GPU."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values):
        layout = {"strides": values.stride(), "dtype": values.dtype, "device": GPU}
        tensor = Tensor._make_wrapper_subclass(cls, values.shape, **layout)
        tensor.values = values
        return tensor

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with Devices() as devices:
            return devices.__torch_dispatch__(func, types, args, kwargs)


class Devices(TorchDispatchMode):
    """Refuses what a machine with a GPU would refuse, and computes the rest on the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_gpu = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
        check(func.name(), args, tensors)
        device = GPU if on_gpu else torch.device("cpu")
        if kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            kwargs["device"] = "cpu"
        args, kwargs = tree_map(values_of, (args, kwargs))
        known = {id(tensor.values): tensor for tensor in on_gpu}  # what changes in place

        def placed(value):
            if not isinstance(value, Tensor) or device.type == "cpu":
                return value
            return known[id(value)] if id(value) in known else OnGpu(value)

        return tree_map(placed, func(*args, **kwargs))


def values_of(value):
    return value.values if isinstance(value, OnGpu) else value


def check(name, args, tensors):
    """A single number of the CPU may meet tensors of the GPU, and indices of the CPU choose among
    them; whatever else is mixed is an error."""
    if name in COPIES:
        return
    if name in INDEXING and isinstance(args[0], OnGpu):
        tensors = tree_leaves((args[0], args[2:3]))
    places = {isinstance(t, OnGpu) for t in tensors if t.ndim or t.device == GPU or name in JOINING}
    if len(places) > 1:
        raise RuntimeError(f"{name}: tensors on the CPU and on {GPU}")


@pytest.fixture
def gpu(monkeypatch):
    """Within the test there is a GPU, but no backward pass, which needs a real one."""
    missing = [name for name in PRIVATE if not hasattr(torch._C, name)]
    if missing:  # as in the oldest versions
        pytest.skip(f"torch {torch.__version__} has no {', '.join(missing)}")
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch._C, "_InferenceMode", lambda _: torch.no_grad())
    convert = torch.__future__.get_overwrite_module_params_on_conversion
    monkeypatch.setattr(torch.__future__, convert.__name__, lambda: True)
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)
    with torch.backends.cudnn.flags(enabled=False), Devices():
        yield GPU
    torch._C._set_only_lift_cpu_tensors(False)
