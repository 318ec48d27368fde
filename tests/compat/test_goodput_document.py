"""The two code examples of ml-goodput-measurement's document, on outlay's classes."""
# ruff: noqa: T201 - the document prints

from __future__ import annotations

import numpy as np
import pytest

import outlay as goodput
from outlay.clock import ManualClock


class Config:
    run_name = "bert-base"
    steps = 6


def load_next_batch(data_iterator: ManualClock, example_batch: int, config: Config) -> int:
    data_iterator.advance(500_000_000)
    return example_batch + config.steps


def train(config: Config, clock: ManualClock) -> None:
    """Run the document's training loop, with a clock that says how long things take."""
    start_step, example_batch, data_iterator = 0, 0, clock
    goodput_logger_name = f"goodput_{config.run_name}"
    goodput_recorder = goodput.GoodputRecorder(
        job_name=config.run_name,
        logger_name=goodput_logger_name,
        logging_enabled=True,
        clock=clock,
    )

    def train_loop(config: Config, example_batch: int, state: object = None) -> object:
        goodput_recorder.record_tpu_init_start_time()
        clock.advance(4_000_000_000)
        goodput_recorder.record_tpu_init_end_time()
        goodput_recorder.record_training_preparation_start_time()
        clock.advance(2_000_000_000)
        goodput_recorder.record_training_preparation_end_time()

        for step in np.arange(start_step, config.steps):
            goodput_recorder.record_data_loading_start_time()
            example_batch = load_next_batch(data_iterator, example_batch, config)
            goodput_recorder.record_data_loading_end_time()
            goodput_recorder.record_step_start_time(step)
            clock.advance(3_000_000_000 if step == 0 else 1_000_000_000)

        return state

    goodput_recorder.record_job_start_time()
    train_loop(config, example_batch)
    goodput_recorder.record_job_end_time()


def test_the_train_loop_and_the_breakdown_of_the_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, clock = Config(), ManualClock()
    train(config, clock)
    goodput_logger_name = f"goodput_{config.run_name}"
    goodput_calculator = goodput.GoodputCalculator(
        job_name=config.run_name, logger_name=goodput_logger_name, clock=clock
    )
    # fmt: off
    total_goodput, badput_breakdown, last_step = goodput_calculator.get_job_goodput(include_badput_breakdown=True)  # noqa: E501
    print(f"Last step recorded: {last_step}")
    print(f"Goodput: {total_goodput:.2f}%")
    print(f"Badput due to TPU initialization: {badput_breakdown[goodput.BadputType.TPU_INITIALIZATION]:.2f}%")  # noqa: E501
    print(f"Badput due to training preparation: {badput_breakdown[goodput.BadputType.TRAINING_PREP]:.2f}%")  # noqa: E501
    print(f"Badput due to program startup: {badput_breakdown[goodput.BadputType.PROGRAM_STARTUP]:.2f}%")  # noqa: E501
    print(f"Badput due to data loading: {badput_breakdown[goodput.BadputType.DATA_LOADING_SYNC]:.2f}%")  # noqa: E501
    print(f"Badput due to disruption and wasted progress: {badput_breakdown[goodput.BadputType.WASTED_PROGRESS_FROM_DISRUPTION]:.2f}%")  # noqa: E501
    print(f"Badput due to checkpoint save: {badput_breakdown[goodput.BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME]:.2f}%")  # noqa: E501
    print(f"Badput due to checkpoint restore: {badput_breakdown[goodput.BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME]:.2f}%")  # noqa: E501
    print(f"Badput from unknown source: {badput_breakdown[goodput.BadputType.OTHER]:.2f}%")
    # fmt: on

    # 6 s before the loop, a blocking load of 0.5 s, and steps of 3.5, 1.5 x 4 and 1 s: 17 s.
    assert capsys.readouterr().out.splitlines() == [
        "Last step recorded: 5",
        "Goodput: 50.00%",  # 1.5 x 5 + 1
        "Badput due to TPU initialization: 23.53%",
        "Badput due to training preparation: 11.76%",
        "Badput due to program startup: 11.76%",
        "Badput due to data loading: 2.94%",
        "Badput due to disruption and wasted progress: 0.00%",
        "Badput due to checkpoint save: 0.00%",
        "Badput due to checkpoint restore: 0.00%",
        "Badput from unknown source: 0.00%",
    ]
