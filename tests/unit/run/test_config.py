"""The configuration: one frozen tree, mistakes named with their fix."""

from pathlib import Path

import pytest

from trialyard.core.errors import ConfigError
from trialyard.run.config import (
    RunConfig,
    leaves,
    load_config,
    parse_config,
    parse_override,
    to_toml,
)


def test_the_tree_stays_within_its_budget() -> None:
    assert len(leaves()) <= 60


def test_every_shipped_configuration_is_valid() -> None:
    files = sorted(Path("configs").glob("*.toml"))
    assert files
    for file in files:
        load_config(file)


def test_the_resolved_tree_reads_back_as_itself(tmp_path: Path) -> None:
    config = parse_config({"name": "x", "rl": {"steps": 3}, "tasks": {"generator": 'a\\b"c'}}, "t")
    file = tmp_path / "resolved.toml"
    file.write_text(to_toml(config))
    assert load_config(file) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[rl]\nstep = 1\n", "unknown key 'rl.step'; did you mean 'steps'?"),
        ("sede = 1\n", "unknown key 'sede'; did you mean 'seed'?"),
        ("[rl]\nsteps = -1\n", "rl.steps"),
        ("[rl]\nsteps = 'many'\n", "rl.steps"),
        ("name = 'a/b'\n", "name"),
        ("[policy]\nkind = 'hf'\n", "policy.path must name a model directory"),
        ("[rl\n", "not valid TOML"),
    ],
)
def test_a_mistake_names_file_key_and_fix(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert expected in str(error.value)
    assert "bad.toml" in str(error.value)


def test_a_missing_file_says_where_examples_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="configs/"):
        load_config(tmp_path / "none.toml")


def test_overrides_are_toml_values_and_bare_words_are_text(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("name = 'a'\n")
    overrides = dict(parse_override(text) for text in ("rl.steps=7", "name=other", "seed=3"))
    config = load_config(file, overrides)
    assert (config.rl.steps, config.name, config.seed) == (7, "other", 3)
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_override("rl.steps")


def test_the_tree_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().seed = 4
