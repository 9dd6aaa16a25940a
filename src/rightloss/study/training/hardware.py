"""Where nets are trained, and how precisely.

Stage: `Hardware` → Lightning Fabric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Hardware:
    """Devices, in Fabric's words. Not part of what a run is.

    Attributes:
        accelerator: "cpu", "cuda", "mps", or "auto".
        devices: how many; with more than one, minibatches are shared out among processes that train together (DDP).
    """

    accelerator: str = "cpu"
    devices: int = 1

    def fabric(self, precision: str = "32-true") -> Fabric:
        """Not launched yet; a ValueError where this machine has no such thing."""
        from lightning.fabric import Fabric

        strategy = "ddp_spawn" if self.devices > 1 else "auto"
        settings: dict[str, Any] = {"accelerator": self.accelerator, "devices": self.devices, "precision": precision}
        try:
            return Fabric(**settings, strategy=strategy)
        except Exception as error:  # Fabric raises its own kinds
            raise ValueError(f"Expected devices that this machine has, but got {self} at {precision}: {error}") from error
