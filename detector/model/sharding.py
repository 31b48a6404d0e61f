"""Parameters that are sharded over the processes (FSDP2): sharding a network, and its tensors in
part or whole."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from boltbox.detector.model.network import YOLOv5


def shard(network: YOLOv5, mesh: DeviceMesh) -> None:
    """Shard the parameters over a one-dimensional mesh, layer by layer, in place; buffers stay
    whole in every process.

    A network that is sharded already is left alone: after a roll-back the Trainer calls this again.
    """
    if is_sharded(network):
        return
    network.to(memory_format=torch.contiguous_format)  # a shard is a row of consecutive numbers
    for name in network.layer_names().values():
        fully_shard(network.get_submodule(name), mesh=mesh)
    fully_shard(network, mesh=mesh)


def is_sharded(network: nn.Module) -> bool:
    return isinstance(network, FSDPModule)


def keep_whole(network: nn.Module, whole: bool) -> None:
    """Gather the parameters of a sharded network and keep them through any number of forward
    passes, or let go of them again.

    In between a forward pass talks to no other process, so the processes may evaluate unequal
    numbers of batches.
    """
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_reshard_after_forward(not whole, recurse=False)
            if whole:
                module.unshard()
            else:
                module.reshard()


def local(tensor: Tensor) -> Tensor:
    """This process's part, in the same memory; a tensor that is not sharded as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All parts put together, in every process at once; a tensor that is not sharded as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def distribute_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor, which every process holds, on the device of a parameter and sharded as it."""
    tensor = tensor.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return tensor
    return distribute_tensor(
        tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
