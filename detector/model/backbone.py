"""The backbone: from an image to one map per level, level k at stride 2**k."""

from torch import Tensor, nn

from boltbox.detector.model.layers import C3, SPPF, Conv, Convolution


class Backbone(nn.Module):
    """Image (B, 3, H, W) -> {level: (B, channels[level], H / 2**level, W / 2**level)} for levels 2
    to the top.

    Args:
        channels: by level, from 1.
        repeats: bottlenecks of each level's stage, from 2.
        pool_first: YOLOX's order (Ge et al. 2021, arXiv 2107.08430): the pooling is before the last
            stage, not after it, and the bottlenecks of that stage have no shortcut.
        conv: of the 3x3 convolutions; YOLOX-Nano has DepthwiseConv.
    """

    def __init__(
        self,
        channels: dict[int, int],
        repeats: dict[int, int],
        pool_first: bool = False,
        conv: Convolution = Conv,
    ) -> None:
        super().__init__()
        top = max(channels)
        self.top = str(top)
        self.pool_first = pool_first
        self.stem = Conv(3, channels[1], kernel=6, stride=2, padding=2)
        self.down = nn.ModuleDict()
        self.c3 = nn.ModuleDict()
        for k in range(2, top + 1):
            self.down[str(k)] = conv(channels[k - 1], channels[k], kernel=3, stride=2)
        for k in range(2, top + 1):
            shortcut = k < top or not pool_first
            self.c3[str(k)] = C3(channels[k], channels[k], repeats[k], shortcut, conv)
        self.sppf = SPPF(channels[top], channels[top])

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        x = self.stem(x)
        maps = {}
        for k, down in self.down.items():
            x = down(x)
            if k == self.top and self.pool_first:
                x = self.sppf(x)
            x = self.c3[k](x)
            if k == self.top and not self.pool_first:
                x = self.sppf(x)
            maps[int(k)] = x
        return maps

    def layer_names(self) -> list[str | None]:
        """The modules in forward order."""
        names: list[str | None] = ["stem"]
        for k in self.down:
            names.append(f"down.{k}")
            names.append(f"c3.{k}")
        names.insert(-1 if self.pool_first else len(names), "sppf")
        return names
