"""``int8-kernels``: rotated int8 whose products are computed by Ekiden's own kernels (``kernels.py``).

The weights are those of ``int8-rotated``. Activations share a scale in groups of up to 256 channels. The sums of a
group are whole numbers and therefore exact, and groups are added in one order, so a token's result has the same bits in
every pass, whatever instructions the processor has (docs/decisions/0034).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import openvino as ov
from openvino import Node, Output

from ekiden.backends.openvino import kernels
from ekiden.backends.openvino.weights.format import joined
from ekiden.backends.openvino.weights.int8 import quantise_per_channel
from ekiden.backends.openvino.weights.rotated import RotatedInt8
from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInt8(RotatedInt8):
    """``int8-kernels``."""

    name: str = "int8-kernels"

    @property
    def key(self) -> str:
        return f"{self.name} {kernels.VERSION}"

    @staticmethod
    def misfit(spec: ModelSpec) -> str | None:
        """The width of a model that the kernels cannot multiply; None where there is none."""
        widths = {
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "heads * head_dim": spec.num_heads * spec.head_dim,
        }
        return next((f"{name} {width}" for name, width in widths.items() if kernels.group_of(width) is None), None)

    def prepare(self, spec: ModelSpec, checkpoint: Checkpoint) -> tuple[ModelSpec, Checkpoint]:
        misfit = self.misfit(spec)
        if misfit is not None:
            raise ModelError(
                f"weights is {self.name}, whose groups are 32 wide or multiples of that, but the model has {misfit}; "
                "choose --weights int8"
            )
        return super(KernelInt8, self).prepare(spec, checkpoint)

    def told(self) -> dict[str, str]:
        found = kernels.installed()
        return {**self.details, "kernels": f"{found.version} {found.instructions}"}

    def group(self, spec: ModelSpec, model: ov.Model) -> int:
        """None: the plugin computes no product."""
        return 0

    def extend(self, core: ov.Core) -> None:
        core.add_extension(kernels.installed().path)

    def product(self, x: Node, checkpoint: Checkpoint, *names: str) -> Node:
        return kernels.linear(x, quantise_per_channel(joined(checkpoint, names)))

    def block(
        self, spec: ModelSpec, checkpoint: Checkpoint, index: int, hidden: Node | Output, attended: Node
    ) -> Sequence[Output] | None:
        """None where a bias stands between its products; those of query, key and value come after it. The norms of a
        rotated model have no weights."""
        if spec.output_bias or spec.mlp_bias:
            return None

        def weight(layer: int, *names: str) -> kernels.Quantised:
            return quantise_per_channel(joined(checkpoint, [f"model.layers.{layer}.{name}.weight" for name in names]))

        last = index + 1 == spec.num_layers
        return kernels.block(
            hidden,
            attended,
            output=weight(index, "self_attn.o_proj"),
            gate_up=weight(index, "mlp.gate_proj", "mlp.up_proj"),
            down=weight(index, "mlp.down_proj"),
            projections=() if last else [weight(index + 1, f"self_attn.{each}_proj") for each in "qkv"],
            epsilon=spec.rms_norm_eps,
        )

    def head(self, x: Node, checkpoint: Checkpoint, name: str, embedding: Node) -> Node:
        return self.product(x, checkpoint, name)
