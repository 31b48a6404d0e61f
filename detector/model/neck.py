"""The path-aggregation neck (Liu et al. 2018, arXiv 1803.01534): from the top level of the backbone
down to the finest detection level and up again."""

from collections.abc import Sequence

from torch import Tensor, nn

from boltbox.detector.model.layers import C3, Conv, Convolution, concatenate


class Neck(nn.Module):
    """{level: map} of the backbone -> one map per detection level, finest first, with the same
    channels.

    Args:
        channels: of the backbone, by level.
        levels: detection levels.
        repeats: bottlenecks by level.
        conv: of the 3x3 convolutions; see Backbone.
    """

    def __init__(
        self,
        channels: dict[int, int],
        levels: Sequence[int],
        repeats: dict[int, int],
        conv: Convolution = Conv,
    ) -> None:
        super().__init__()
        down = range(max(channels) - 1, min(levels) - 1, -1)
        up = range(min(levels) + 1, max(levels) + 1)
        self.lateral = nn.ModuleDict()
        self.top_down = nn.ModuleDict()
        self.down = nn.ModuleDict()
        self.bottom_up = nn.ModuleDict()
        for k in down:
            self.lateral[str(k)] = Conv(channels[k + 1], channels[k])
        for k in down:
            self.top_down[str(k)] = C3(2 * channels[k], channels[k], repeats[k], False, conv)
        for k in up:
            self.down[str(k)] = conv(channels[k - 1], channels[k - 1], kernel=3, stride=2)
        for k in up:
            self.bottom_up[str(k)] = C3(2 * channels[k - 1], channels[k], repeats[k], False, conv)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, maps: dict[int, Tensor]) -> list[Tensor]:
        x = maps[max(list(maps))]  # torch 2.6 does not trace max of a dictionary
        laterals = {}
        for k in self.lateral:  # coarse to fine
            laterals[int(k)] = self.lateral[k](x)
            x = self.top_down[k](concatenate(self.upsample(laterals[int(k)]), maps[int(k)]))
        outputs = [x]
        for k in self.bottom_up:  # fine to coarse
            x = self.bottom_up[k](concatenate(self.down[k](x), laterals[int(k) - 1]))
            outputs.append(x)
        return outputs
