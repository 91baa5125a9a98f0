"""The ragged cache gives what whole forward passes give, whatever joins and leaves."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from trialyard.policies.hf_directory import load_model
from trialyard.policies.hf_llama import Llama
from trialyard.policies.hf_rows import ForwardRows, FusedLlama, LlamaRows, survivors

VOCABULARY = 40


@pytest.fixture(scope="module", params=[4, 2])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Llama:
    torch.manual_seed(request.param)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=request.param,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    directory: Path = tmp_path_factory.mktemp("rows")
    LlamaForCausalLM(config).save_pretrained(directory)
    loaded = load_model(directory)
    assert isinstance(loaded, Llama)
    with torch.no_grad():
        for parameter in loaded.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return loaded


def prompts(generator: torch.Generator, count: int, longest: int) -> list[list[int]]:
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("seed", range(4))
def test_cached_rows_equal_whole_forward_passes(model: Llama, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        cached, plain = LlamaRows(FusedLlama(model)), ForwardRows(model)
        count = 0
        for round_ in range(40):
            if round_ % 7 == 0:
                new = prompts(generator, 5, 30)
                assert torch.allclose(cached.add(new), plain.add(new), atol=1e-4)
                count += 5
            tokens_N = torch.randint(0, VOCABULARY, (count,), generator=generator)
            assert torch.allclose(cached.step(tokens_N), plain.step(tokens_N), atol=1e-4)
            if round_ % 5 == 4:
                dropped = torch.randperm(count, generator=generator)[:3].tolist()
                cached.drop(dropped)
                plain.drop(dropped)
                count -= 3


def test_an_emptied_cache_takes_new_rows(model: Llama) -> None:
    with torch.inference_mode():
        rows = LlamaRows(FusedLlama(model))
        first = rows.add([[1, 2, 3], [4, 5]])
        rows.drop([0, 1])
        assert torch.equal(rows.add([[1, 2, 3], [4, 5]]), first)


def test_equal_prompts_are_read_once_and_stay_apart(model: Llama) -> None:
    with torch.inference_mode():
        rows = LlamaRows(FusedLlama(model))
        logits = rows.add([[1, 2], [7], [1, 2]])
        assert torch.equal(logits[0], logits[2])
        after = rows.step(torch.tensor([3, 3, 4]))
        alone = LlamaRows(FusedLlama(model))
        alone.add([[1, 2]])
        assert torch.allclose(after[2], alone.step(torch.tensor([4]))[0], atol=1e-5)
        assert not torch.allclose(after[0], after[2], atol=1e-3)


def test_old_rows_keep_old_weights(model: Llama) -> None:
    """A fused copy does not follow its source: new weights never reach cached rows."""
    with torch.inference_mode():
        fused = FusedLlama(model)
        rows, fresh = LlamaRows(fused), LlamaRows(fused)
        rows.add([[1, 2, 3]])
        fresh.add([[1, 2, 3]])
        saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        try:
            model.load_state_dict({name: tensor * 2 for name, tensor in saved.items()})
            got = rows.step(torch.tensor([4]))
        finally:
            model.load_state_dict(saved)
        assert torch.equal(got, fresh.step(torch.tensor([4])))


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_survivors_are_all_rows_but_the_dropped(case: tuple[int, set[int]]) -> None:
    count, dropped = case
    order = survivors(count, sorted(dropped))
    assert sorted(order) == [row for row in range(count) if row not in dropped]
    assert all(row == place for place, row in enumerate(order) if row < len(order))
