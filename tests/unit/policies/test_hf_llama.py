"""Our plain Llama against transformers' own, and what it refuses to be."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models import tiny_directory
from trialyard.policies.hf_directory import load_model, load_weights, weights_bytes
from trialyard.policies.hf_llama import Llama, LlamaShape

PLAIN = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 2, "tie_word_embeddings": False},
        {"num_key_value_heads": 1, "head_dim": 16, "rope_theta": 100_000.0},
    ],
)
def test_logits_equal_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(3)
    theirs = LlamaForCausalLM(LlamaConfig(**{**PLAIN, **changes}, initializer_range=0.3))
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, Llama)
    ids_BT = torch.randint(0, 50, (3, 40))
    everywhere_BT = torch.ones(3, 40, dtype=torch.bool)
    with torch.no_grad():
        expected = theirs(input_ids=ids_BT).logits.flatten(0, 1)
        got = ours(ids_BT, torch.full((3,), 40), everywhere_BT)
    assert expected.abs().max() > 1
    assert (expected - got).abs().max() < 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2"},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
    ],
)
def test_other_architectures_are_not_approximated(changes: dict[str, Any]) -> None:
    assert LlamaShape.of(PLAIN) is not None
    assert LlamaShape.of({**PLAIN, **changes}) is None


def test_weights_round_trip_under_the_names_of_the_directory(tmp_path: Path) -> None:
    source = load_model(tiny_directory(tmp_path / "a", seed=1))
    target = load_model(tiny_directory(tmp_path / "b", seed=2))
    load_weights(target, weights_bytes(source), origin="test")
    assert weights_bytes(target) == weights_bytes(source)
    assert weights_bytes(source) == (tmp_path / "a" / "model.safetensors").read_bytes()


def test_other_model_types_run_on_transformers(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=30, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    )
    theirs.train(False).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "gpt2"
    ours = load_model(tmp_path).eval()
    ids_BT = torch.randint(0, 30, (2, 8))
    lengths_B = torch.tensor([5, 8])
    chosen_BT = torch.zeros(2, 8, dtype=torch.bool)
    chosen_BT[0, 4] = chosen_BT[1, 7] = True
    with torch.no_grad():
        short = theirs(input_ids=ids_BT[:1, :5]).logits[0, -1]
        long = theirs(input_ids=ids_BT[1:]).logits[0, -1]
        got = ours(ids_BT, lengths_B, chosen_BT)
    assert (got - torch.stack((short, long))).abs().max() < 1e-5
    load_weights(ours, weights_bytes(ours), origin="its own")
