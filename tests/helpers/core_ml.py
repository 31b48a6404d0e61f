"""A Core ML package whose program PyTorch computes: only macOS has Apple's runtime."""

import numpy as np
import torch
from torch.nn.functional import interpolate, silu


def conv(x, weight, bias, strides, pad, dilations, groups, **options):
    weight, bias = map(torch.from_numpy, (weight, bias))
    return torch.conv2d(x, weight, bias, strides, pad[::2], dilations, groups)


def max_pool(x, kernel_sizes, strides, pad, **options):
    return torch.max_pool2d(x, kernel_sizes, strides, pad[::2])


def part(x, begin, end, end_mask):
    return x[tuple(map(slice, begin, np.where(end_mask, x.shape, end)))]


OPERATORS = {
    "add": lambda x, y: x + y,
    "concat": lambda values, axis, interleave: torch.cat(values, axis),
    "conv": conv,
    "max_pool": max_pool,
    "mul": lambda x, y: x * y,
    "reshape": lambda x, shape: x.reshape(shape),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: silu(x),
    "slice_by_index": part,
    "sub": lambda x, y: x - y,
    "transpose": lambda x, perm: x.permute(perm),
    "upsample_nearest_neighbor": lambda x, **scales: interpolate(x, scale_factor=2),
}


def program_of(package):
    """Images -> the output of the package's program, operator by operator."""
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.models import MLModel

    model = MLModel(str(package), skip_model_load=True)
    spec = model.get_spec()
    function = load(spec, spec.specificationVersion, model.weights_dir).functions["main"]

    def run(images):
        values = {"images": images}

        def value_of(variable):
            if isinstance(variable, list | tuple):
                return [value_of(each) for each in variable]
            if variable.val is None:
                return values[variable.name]
            known = np.asarray(variable.val)
            return known if known.dtype.kind == "f" else known.tolist()

        for operation in function.operations:
            given = {}
            for name, variable in operation.inputs.items():
                if variable is not None and name != "name":
                    given[name] = value_of(variable)
            if operation.op_type != "const":
                values[operation.outputs[0].name] = OPERATORS[operation.op_type](**given)
        return values[function.outputs[0].name]

    return run
