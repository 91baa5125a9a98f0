"""Is it the reward that teaches? The quickstart's training beside its controls.

For each seed: the quickstart as it is; the same with a random reward; more supervised
training with the wall-clock that reinforcement learning took; and the trained policy
evaluated with another task's feedback after each failed try. Runs are kept below
``runs/controls`` and resumed when they exist, so that this can be interrupted.

Environment: TRIALYARD_SEEDS (default "0,1,2"), TRIALYARD_CONTROLS (default all).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks._outcome import at_least, at_most, machine

ROOT = Path("runs/controls")
CONFIG = "configs/quickstart.toml"
TRIALYARD = [sys.executable, "-m", "trialyard.cli.main"]
SFT_STEPS = 250


def run() -> dict[str, Any]:
    """One object as every benchmark prints it (DESIGN: benchmarks say what they promise)."""
    seeds = [int(text) for text in os.environ.get("TRIALYARD_SEEDS", "0,1,2").split(",")]
    chosen = os.environ.get("TRIALYARD_CONTROLS", "random,sft,swapped").split(",")
    figures: dict[str, Any] = {}
    against: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    for seed in seeds:
        main = train(f"quickstart-{seed}", seed)
        figures[f"seed {seed}"] = main["held_out"]
        for mode, least in (("sampled", 0.35), ("greedy", 0.30)):
            targets.append(at_least(f"seed {seed}: rise {mode}", rise(main, mode), least))
        if "random" in chosen:
            random = train(f"random-{seed}", seed, **{"rl.reward": "random"})
            against[f"seed {seed}: random reward"] = random["held_out"]
            targets.append(at_most(f"seed {seed}: rise, random", rise(random, "sampled"), 0.0))
        if "sft" in chosen:
            steps = more_sft_steps(main)
            more = train(f"sft-{seed}", seed, **{"rl.steps": 0, "sft.steps": steps})
            against[f"seed {seed}: SFT for {steps} steps"] = more["held_out"]
            gained = more["held_out"]["after_sft"]["sampled"] - sampled(main, "after_sft")
            targets.append(
                at_most(f"seed {seed}: rise, more SFT", gained, rise(main, "sampled") / 2)
            )
        if "swapped" in chosen:
            own, swapped = (feedback(f"quickstart-{seed}", kind) for kind in ("own", "swapped"))
            against[f"seed {seed}: swapped feedback"] = {"own": own, "swapped": swapped}
            cost = own["sampled"] - swapped["sampled"]
            targets.append(at_least(f"seed {seed}: cost of swapped feedback", cost, 0.05))
    return {
        "benchmark": "learning_controls",
        "machine": machine(),
        "figures": figures,
        "against": against,
        "targets": targets,
    }


def train(name: str, seed: int, **overrides: Any) -> dict[str, Any]:
    """Summary of a run; it goes on from where an earlier call was interrupted."""
    out = ROOT / name
    settings = {"name": name, "seed": seed, "evaluation.samples": 2, **overrides}
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    if not (out / "summary.json").exists():
        argv = [*TRIALYARD, "train", CONFIG, "--out", str(out), "--or-resume", *flags]
        subprocess.run(argv, check=True, stdout=sys.stderr)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def feedback(name: str, kind: str) -> dict[str, Any]:
    """Held-out rates of a trained run under one kind of feedback."""
    argv = [*TRIALYARD, "evaluate", str(ROOT / name), "--feedback", kind, "--samples", "2"]
    done = subprocess.run([*argv, "--json"], check=True, capture_output=True, text=True)
    rates: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return rates


def more_sft_steps(main: dict[str, Any]) -> int:
    """Supervised steps that take as long as both phases of the real run took."""
    wall_s = main["wall_s"]
    return int(SFT_STEPS * (wall_s["sft"] + wall_s["rl"]) / wall_s["sft"])


def sampled(summary: dict[str, Any], label: str) -> float:
    return float(summary["held_out"][label]["sampled"])


def rise(summary: dict[str, Any], mode: str) -> float:
    held_out = summary["held_out"]
    return float(held_out["after_rl"][mode] - held_out["after_sft"][mode])
