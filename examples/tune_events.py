"""A Ray Tune job whose trials log their steps to a topic.

    python examples/tune_events.py

The steps can be followed meanwhile, and stay. The producer travels into the trials; the trial is the key, so
that its steps are in order. Needs the extra `[tune]`.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

from ray import tune

import pulsar_ray

TOPIC = "trials"
STEPS = 10


def train(config: dict[str, Any], events: pulsar_ray.Producer) -> None:
    """One trial: descends from 10 towards 3, as fast as its learning rate lets it."""
    trial = tune.get_context().get_trial_id()
    x = 10.0
    for step in range(STEPS):
        x -= config["rate"] * 2 * (x - 3)
        loss = (x - 3) ** 2
        event = {"step": step, "rate": config["rate"], "loss": loss}
        events.send_async(json.dumps(event).encode(), None, partition_key=trial)
        tune.report({"loss": loss})
    # Durable before the trial counts as done.
    events.flush()
    events.close()


def main() -> None:
    with pulsar_ray.Client() as client, tempfile.TemporaryDirectory() as results:
        following = client.subscribe(TOPIC, "dashboard")
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(train, events=client.create_producer(TOPIC)), {"cpu": 0.5}
            ),
            param_space={"rate": tune.grid_search([0.01, 0.1, 0.5, 0.9])},
            tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
            run_config=tune.RunConfig(storage_path=results, verbose=0),
        )
        best = tuner.fit().get_best_result()

        steps: dict[str, list[int]] = {}
        rates: dict[float, float] = {}
        while sum(map(len, steps.values())) < 4 * STEPS:
            message = following.receive(timeout_millis=60_000)
            event = json.loads(message.data())
            steps.setdefault(message.partition_key(), []).append(event["step"])
            rates[event["rate"]] = event["loss"]
            following.acknowledge(message)
        assert all(trial == list(range(STEPS)) for trial in steps.values())
        rate = best.config["rate"]
        assert rate == min(rates, key=rates.__getitem__)
        print(f"{len(steps)} trials logged {STEPS} steps each, in order; the best rate is {rate}")


if __name__ == "__main__":
    main()
