"""model.compile: the network's blocks as machine code of their own, made by torch.compile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from boltbox.detector.model.layers import Bottleneck, Conv
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.sharding import is_sharded
from boltbox.detector.system.rank_zero import rank_zero_print

BACKEND = "inductor"


def compile_network(network: YOLOv5, varied: bool) -> bool:
    """Compile the blocks of a network for a training, if that is possible; print a line about it.

    Args:
        network: What is trained.
        varied: The size of the images changes from batch to batch.

    Returns:
        Whether it is compiled.
    """
    obstacle = ""
    compiler = os.environ.get("CXX", "g++")
    # code for any size fails in torch 2.14: wrong strides are expected of an image in
    # channels-last memory
    if varied:
        obstacle = "the images' size changes from batch to batch (model.multi_scale, data.rect)"
    elif is_sharded(network):
        obstacle = "its parameters are sharded over processes"
    elif BACKEND == "inductor" and not shutil.which(compiler):  # its code for processors is C++
        obstacle = f"there is no C++ compiler {compiler}; install one, or name it in CXX"
    if obstacle:
        rank_zero_print(f"the network is not compiled: {obstacle}")
        return False
    compile_blocks(network)
    rank_zero_print(
        "the network is compiled: the first batch takes a minute or two; less where it was"
        " compiled before"
    )
    return True


def eager_unless(shape: tuple[int, ...], images: Tensor) -> AbstractContextManager[object]:
    """The context of a forward pass, in which batches of another shape than the compiled code's,
    like the last one of an epoch, are computed without it: so the result depends on the batch, not
    on earlier ones, and a resumed run computes the same.

    Args:
        shape: Of the compiled code's batches.
        images: The batch.
    """
    if images.shape != shape:
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


def blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The bottlenecks, and the convolution blocks that are in none."""
    for child in network.children():
        if isinstance(child, Bottleneck | Conv):
            yield child
        else:
            yield from blocks(child)


def compile_blocks(network: nn.Module) -> None:
    """Compile the blocks of a network, in place, each when it first runs; equal ones once.
    Parameters and their names stay."""
    import torch._dynamo.config as limits

    to_compile = list(blocks(network))
    # torch takes them for versions of one function
    versions = 2 * len(to_compile)
    limits.recompile_limit = max(limits.recompile_limit, versions)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, versions)
    for block in to_compile:
        block.compile(dynamic=False, backend=BACKEND)
