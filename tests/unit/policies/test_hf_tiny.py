"""The tiny model is an ordinary model directory, made from its seed alone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tests.models import PIECE, WORDS, tiny_directory
from trialyard.core.errors import ConfigError
from trialyard.core.policy import Message
from trialyard.policies.hf_conversation import load_conversation
from trialyard.policies.hf_directory import load_model
from trialyard.policies.hf_tiny import create_tiny_model


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_the_directory_depends_on_the_arguments_only(tmp_path: Path) -> None:
    def made(name: str, seed: int) -> dict[str, bytes]:
        return content(create_tiny_model(tmp_path / name, WORDS, PIECE, seed, d_model=8, layers=1))

    first = made("a", 5)
    again = made("b", 5)
    other = made("c", 6)
    assert sorted(first) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert first == again
    assert [name for name in first if first[name] != other[name]] == ["model.safetensors"]


def test_transformers_loads_model_and_tokenizer(tmp_path: Path) -> None:
    directory = tiny_directory(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(directory)
    assert isinstance(theirs, LlamaForCausalLM)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "sum of list"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == load_conversation(directory).prompt_ids([Message("user", "sum of list")])
    ids_BT = torch.tensor([ids])
    with torch.no_grad():
        expected = theirs(input_ids=ids_BT).logits[0]
        got = load_model(directory)(
            ids_BT, torch.tensor([len(ids)]), torch.ones_like(ids_BT).bool()
        )
    assert (expected - got).abs().max() < 1e-5


def test_pieces_between_and_dropped_ones_carry_nothing(tmp_path: Path) -> None:
    directory = create_tiny_model(
        tmp_path, ["a", "b", ","], r", |\w|,", 0, d_model=8, layers=1, heads=2, ff=8
    )
    conversation = load_conversation(directory)
    ids = conversation.output_ids("a, b;  a,b")
    assert conversation.text(ids) == "a b a,b"


def test_pieces_that_ask_for_a_space_get_one(tmp_path: Path) -> None:
    directory = create_tiny_model(
        tmp_path, [*WORDS, "x"], PIECE, 0, spaced=["for"], d_model=8, layers=1, heads=2, ff=8
    )
    conversation = load_conversation(directory)
    assert conversation.text(conversation.output_ids("[v]for v if[1]")) == "[v] for v if[1]"


def test_unknown_text_is_unknown_not_an_error(tmp_path: Path) -> None:
    conversation = load_conversation(tiny_directory(tmp_path))
    assert conversation.text(conversation.output_ids("zebra + 1")) == "<unk>+1"


@pytest.mark.parametrize("heads", [3, 16])
def test_impossible_sizes_are_refused(tmp_path: Path, heads: int) -> None:
    with pytest.raises(ConfigError, match="heads"):
        create_tiny_model(tmp_path, ["a"], r"\w", 0, d_model=16, heads=heads)
