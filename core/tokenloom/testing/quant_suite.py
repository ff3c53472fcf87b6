"""The conformance suite of quantizers: what they cover, how near weights stay, and that products use just these."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tokenloom.interfaces.quant import LayerSpec
from tokenloom.testing.numeric_device import DTYPES, require_dtype
from tokenloom.testing.quant_cases import DOWN, QKV, orders
from tokenloom.testing.quant_model_suite import QuantModelSuite

__all__ = ["QuantSuite"]


class QuantSuite(QuantModelSuite):
    """Tests of the contract in `tokenloom.interfaces.quant`::

        class TestMine(QuantSuite):
            plugin = "my_quant"
            settings = {"bits": 4}
            max_relative_error = 0.5 / 7

    The suite loads floating point weights, or what `make_tensors` packs them into. `apply` to rows of the identity
    shows the weights that the layer really uses: they must be within `max_relative_error` of the true ones, and every
    other product must be one with exactly these, within the rounding of the dtype and `max_activation_error`.
    """

    def test_covers_a_linear_layer(self) -> None:
        """A quantizer that covers no projection of a decoder layer does nothing. See `Quantizer.covers`.

        One that is meant to do nothing declares the flag `covers_nothing`, and must keep to it.
        """
        quantizer = self.make_quantizer(self.exact_dtype())
        specs = [self.linear_spec(DOWN, 64, 16), self.linear_spec(QKV, 64, 32, 16, 16)]
        covered = [spec.name for spec in specs if quantizer.covers(spec)]
        if "covers_nothing" in self.capabilities.flags:
            assert not covered, f"declares covers_nothing and covers {covered}"
        else:
            assert covered, f"covers none of {[spec.name for spec in specs]}"

    def test_covers_depends_on_the_layer_alone(self) -> None:
        """The core asks once a layer, in the model's order, for layer ranges too: the answer must not depend on what
        was asked before. Layers that it cannot create (experts) it must not cover."""
        first, second = (self.make_quantizer(self.exact_dtype()) for _ in range(2))
        specs = self.model_specs()
        answers = {spec.name: first.covers(spec) for spec in specs}
        for spec in reversed(specs):
            answer = second.covers(spec)
            assert answer == answers[spec.name], f"{spec.name}: {answers[spec.name]} at first, then {answer}"
        experts = replace(self.linear_spec("model.layers.0.mlp.experts", 64, 16), kind="experts")
        assert not first.covers(experts), "covers a layer of kind 'experts', which this contract cannot create"

    def test_covers_leaves_the_skip_list_to_the_core(self) -> None:
        """The core asks only about layers that no skip list names, matched by full dotted name: an entry for layer 1
        says nothing of layer 10. A quantizer that reads `skip` itself matches differently sooner or later."""
        plain = self.make_quantizer(self.exact_dtype())
        skipping = self.make_quantizer(self.exact_dtype(), skip=("model.layers.1", "layers.2.mlp"))
        for spec in self.model_specs():
            if not spec.name.startswith(("model.layers.1.", "model.layers.2.mlp.")):
                wanted = plain.covers(spec)
                assert skipping.covers(spec) == wanted, f"a skip list that does not name {spec.name} changes covers"

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_weights_stay_within_the_stated_error(self, dtype: str) -> None:
        """Dequantized weights against the true ones, per row relative to its largest. A whole step off points at a
        zero point, small rows alone at a scale that several rows share, the last columns at sizes K that the packing
        does not divide. See `max_relative_error`."""
        kind = require_dtype(self.capabilities, dtype)
        self.require_linear()
        for spec in self.linear_specs():
            effective = self.effective_weight(self.make_linear(spec, kind), spec, kind)
            self.check_weight(effective, self.weight_of(spec), kind, f"{_sizes(spec)}, {dtype}")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_of_zeros_stay_zeros(self, dtype: str) -> None:
        """An output feature of all zeros gave NaN or something else than 0, or one with a single weight lost it.

        Pruned models and padded vocabularies have such rows; their scale, the largest weight over a number of levels,
        is 0. Every other row must be right beside them.
        """
        kind = require_dtype(self.capabilities, dtype)
        self.require_linear()
        spec = self.linear_spec(DOWN, 33, 40)
        weight = self.weight_of(spec)
        weight[3] = 0.0
        weight[7] = 0.0
        weight[7, 5] = 20.0
        weights = self.make_quantizer(kind).create_linear(spec)
        self.load(weights, self.tensors_of(spec, weight=weight))
        effective = self.effective_weight(weights, spec, kind)
        for num_rows in (1, 64):
            zeros = weights.apply(self.random_rows(spec, num_rows, kind))[:, 3]
            assert bool((zeros == 0).all()), f"{num_rows} rows times zeros, {dtype}: {zeros.tolist()[:4]}"
        self.check_weight(effective, weight, kind, f"rows of zeros, {dtype}")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_apply_multiplies_by_the_stored_weights(self, dtype: str) -> None:
        """x @ W.T with the W that the layer uses for any other x, from no row to many: kernels for few rows and for
        many must agree. See `LinearWeights.apply`."""
        kind = require_dtype(self.capabilities, dtype)
        self.require_linear()
        for spec in self.linear_specs():
            weights = self.make_linear(spec, kind)
            effective = self.effective_weight(weights, spec, kind)
            for num_rows in (0, 1, 2, 7, 64, 257):
                x = self.random_rows(spec, num_rows, kind)
                self.check_product(weights.apply(x), x, effective, None, f"{_sizes(spec)}, {num_rows} rows")

    def test_apply_adds_the_bias_once(self) -> None:
        """The bias of a fused layer is that of its shards in order; it is added after rounding and scaling, once."""
        kind = self.exact_dtype()
        self.require_linear()
        for spec in self.linear_specs(has_bias=True):
            bare = replace(spec, has_bias=False)
            effective = self.effective_weight(self.make_linear(bare, kind), bare, kind)
            weights = self.make_linear(spec, kind)
            for num_rows in (0, 1, 64, 257):
                x = self.random_rows(spec, num_rows, kind)
                case = f"{_sizes(spec)} with bias, {num_rows} rows"
                self.check_product(weights.apply(x), x, effective, self.bias_of(spec), case)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_apply_treats_each_row_by_itself(self, dtype: str) -> None:
        """One row a hundred times as large as the others costs them nothing: rounding of activations is per row, never
        over the batch."""
        kind = require_dtype(self.capabilities, dtype)
        self.require_linear()
        for spec in self.linear_specs():
            weights = self.make_linear(spec, kind)
            effective = self.effective_weight(weights, spec, kind)
            for num_rows in (2, 40):
                x = self.random_rows(spec, num_rows, kind)
                x[num_rows // 2] *= 100
                self.check_product(weights.apply(x), x, effective, None, f"{_sizes(spec)}, an outlier in {num_rows}")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_deterministic_rows_do_not_depend_on_the_batch(self, dtype: str) -> None:
        """Built with `deterministic`, a row's result is the same bits in any batch. Matrix products choose their order
        of summation by shape."""
        kind = require_dtype(self.capabilities, dtype)
        if not self.capabilities.has_flag("deterministic", self.numeric_device().type):
            pytest.skip(f"quant={self.info.name} does not claim the flag deterministic")
        self.require_linear()
        for spec in self.linear_specs():
            weights = self.make_linear(spec, kind, deterministic=True)
            x = self.random_rows(spec, 40, kind)
            together = weights.apply(x)
            for start, stop in ((0, 1), (39, 40), (3, 8), (7, 30)):
                is_same = torch.equal(weights.apply(x[start:stop]), together[start:stop])
                assert is_same, f"{_sizes(spec)}, {dtype}: rows {start}:{stop} differ alone from themselves among 40"

    def test_apply_takes_strided_rows_and_leaves_them_as_they_are(self) -> None:
        """Activations may be a slice of something wider; whoever made them uses them again."""
        kind = self.exact_dtype()
        self.require_linear()
        for spec in self.linear_specs():
            weights = self.make_linear(spec, kind)
            effective = self.effective_weight(weights, spec, kind)
            for num_rows in (3, 64):
                case = f"{_sizes(spec)}, {num_rows} strided rows"
                x = self.random_rows(spec, num_rows, kind)
                strided = torch.cat([x, torch.full_like(x, torch.nan)], dim=1)[:, : spec.in_features]
                result = weights.apply(strided)
                assert torch.equal(strided, x), f"{case}: apply changed its input"
                self.check_product(result, x, effective, None, case)
                weights.apply(x)
                assert torch.equal(x, strided), f"{case}, made contiguous: apply changed its input"

    def test_load_takes_shards_in_any_order(self) -> None:
        """Checkpoints keep no order: a fused layer is put together by the order of `spec.shards`, not of loading."""
        kind = self.exact_dtype()
        self.require_linear()
        spec = self.linear_spec(QKV, 33, 24, 7, 9, has_bias=True)
        tensors = self.tensors_of(spec)
        x = self.random_rows(spec, 5, kind)
        wanted = self.make_linear(spec, kind).apply(x)
        for order in orders(len(tensors)):
            weights = self.make_quantizer(kind).create_linear(spec)
            self.load(weights, [tensors[index] for index in order])
            came = [f"{tensors[index][0]}.{tensors[index][1]}" for index in order]
            assert torch.equal(weights.apply(x), wanted), (
                f"loaded in the order {came}, the layer multiplies differently"
            )

    def test_load_takes_the_dtype_of_the_checkpoint(self) -> None:
        """Tensors come as they are stored: the same values in bfloat16 and in float32 make the same layer."""
        stored_weight = self.make_tensors(self.linear_spec(DOWN, 64, 16), torch.zeros(16, 64)).get("weight")
        if stored_weight is None or stored_weight.dtype not in DTYPES.values():
            pytest.skip("packed tensors have dtypes of their own")
        kind = self.exact_dtype()
        self.require_linear()
        spec = self.linear_spec(DOWN, 33, 40, has_bias=True)
        x = self.random_rows(spec, 5, kind)
        results: list[torch.Tensor] = []
        for stored in (torch.bfloat16, torch.float32):
            weights = self.make_quantizer(kind).create_linear(spec)
            tensors = self.tensors_of(spec)
            self.load(weights, [(shard, name, tensor.to(torch.bfloat16).to(stored)) for shard, name, tensor in tensors])
            results.append(weights.apply(x))
        assert torch.equal(*results), "a checkpoint in bfloat16 gives other results than the same values in float32"

    def test_load_keeps_nothing_of_the_caller(self) -> None:
        """Loading twice from the same tensors gives the same bits, so `load` and `finalize` change none of them; and
        what the layer keeps after `finalize` is its own memory: the caller may reuse his."""
        kind = self.exact_dtype()
        self.require_linear()
        spec = self.linear_spec(DOWN, 64, 40, has_bias=True)
        tensors = self.tensors_of(spec)
        copies = [tensor.clone() for _, _, tensor in tensors]
        x = self.random_rows(spec, 5, kind)
        first = self.make_quantizer(kind).create_linear(spec)
        self.load(first, tensors)
        for (_, parameter, tensor), copy in zip(tensors, copies):
            assert torch.equal(tensor, copy), f"loading changed the caller's {parameter}"
        wanted = first.apply(x)
        second = self.make_quantizer(kind).create_linear(spec)
        self.load(second, tensors)
        assert torch.equal(second.apply(x), wanted), "loading the same tensors again gives another layer"
        for _, _, tensor in tensors:
            tensor.zero_()
        assert torch.equal(first.apply(x), wanted), "the layer changes when the caller overwrites the tensors it loaded"

    def test_layers_of_one_quantizer_are_independent(self) -> None:
        """Two layers of the same sizes, created by the same quantizer and loaded in turns, share nothing."""
        kind = self.exact_dtype()
        self.require_linear()
        spec = self.linear_spec(DOWN, 33, 40)
        quantizer = self.make_quantizer(kind)
        layers = [quantizer.create_linear(replace(spec, name=f"model.layers.{n}.mlp.down_proj")) for n in range(2)]
        for pair in zip(self.tensors_of(spec, seed=0), self.tensors_of(spec, seed=1)):
            for layer, (shard, parameter, tensor) in zip(layers, pair):
                layer.load(shard, parameter, tensor)
        for layer in layers:
            layer.finalize()
        for seed, layer in enumerate(layers):
            weight = self.weight_of(spec, seed)
            self.check_weight(self.effective_weight(layer, spec, kind), weight, kind, f"layer {seed} of two")

    def test_num_bytes_is_what_a_layer_holds(self) -> None:
        """KV memory is planned from what weights leave: scales and padding count, and what was loaded but is no longer
        needed must be gone. See `num_bytes`, and `held_bytes` for memory that is not in tensors."""
        kind = self.exact_dtype()
        self.require_linear()
        for spec in self.linear_specs(has_bias=True):
            weights = self.make_linear(spec, kind)
            weights.apply(self.random_rows(spec, 3, kind))
            held, stated = self.held_bytes(weights), weights.num_bytes
            assert abs(held - stated) <= 0.01 * held, f"{_sizes(spec)}: num_bytes is {stated}, the layer holds {held}"

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_embedding_looks_up_what_its_head_multiplies_by(self, dtype: str) -> None:
        """A tied table has one set of weights: `lookup` of a row and `apply`, the head, use the same ones."""
        kind = require_dtype(self.capabilities, dtype)
        embedding, spec = self.make_embedding(kind), self.embedding_spec()
        head = self.effective_weight(embedding, spec, kind)
        self.check_weight(head, self.weight_of(spec), kind, f"head, {dtype}")
        last = spec.out_features - 1
        for ids in ([last, 0, 7, 7], list(range(spec.out_features)), []):
            rows = embedding.lookup(torch.tensor(ids, dtype=torch.int64, device=self.numeric_device()))
            assert rows.dtype == kind, f"lookup gives {rows.dtype}, expected the activation dtype {kind}"
            wanted = head[torch.tensor(ids, dtype=torch.int64)]
            assert rows.shape == wanted.shape, f"lookup of {len(ids)} ids gives {tuple(rows.shape)}"
            self.check_same(rows, wanted, f"lookup of {ids[:4]}, {dtype}")
        for num_rows in (0, 1, 64, 257):
            x = self.random_rows(spec, num_rows, kind)
            self.check_product(embedding.apply(x), x, head, None, f"head, {num_rows} rows")


def _sizes(spec: LayerSpec) -> str:
    shards = "+".join(str(shard.out_features) for shard in spec.shards)
    return f"K {spec.in_features}, N {shards}"
