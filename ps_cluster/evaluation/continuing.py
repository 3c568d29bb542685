"""Continue texts, one byte at a time, with the best model of a run that was trained on text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.config.objectives import BYTES
from ps_cluster.data.texts import INPUT, SEPARATOR
from ps_cluster.errors import UserError
from ps_cluster.evaluation.answers import WritePredictions
from ps_cluster.evaluation.example_files import reading
from ps_cluster.evaluation.predict import opened_output
from ps_cluster.evaluation.predictor import Predictor, TrainedRun
from ps_cluster.evaluation.text_sampling import Sampling
from ps_cluster.files.reading import open_regular

PROMPT = "the prompt"


class TextFormatter:
    """Decodes the bytes that continue a text, for the functions that write predictions (`PredictionFormatter`)."""

    columns = headings = ["text"]

    def cells(self, text: bytes) -> list[str]:
        return self.shown(text)

    def shown(self, text: bytes) -> list[str]:
        return [text.decode("utf-8", "replace")]

    def as_json(self, text: bytes) -> dict[str, Any]:
        return {"text": self.shown(text)[0]}


def continue_texts(
    run: TrainedRun,
    paths: Sequence[Path],
    prompt: str | None,
    sampling: Sampling,
    *,
    writer: WritePredictions,
    output: Path | None,
) -> int:
    """Continue the text of each file and the prompt, and write the continuations. Return how many there are.

    Args:
      prompt: a text to continue; None if only files are continued.
      writer: writes the continuations in one of the formats.
      output: the file to write, which appears when it is complete; None to write to standard output.
    """
    window = run.spec.window(run.config.model.name)
    prompts = [(str(path), _end_of(path, window)) for path in paths]
    if prompt is not None:
        prompts.append((PROMPT, prompt.encode("utf-8", "surrogateescape")))
    if empty := [name for name, text in prompts if not text]:
        raise UserError(f"{empty[0]} is empty: give at least one character of text, which the network then continues")
    predictor = Predictor(run)
    rows = ((name, b"".join(bytes_after(predictor, text, window, sampling))) for name, text in prompts)
    with opened_output(output) as stream:
        writer(stream, rows, TextFormatter())
    return len(prompts)


def _end_of(path: Path, count: int) -> bytes:
    """Return the last `count` bytes of a file."""
    with reading(path), open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - count))
        return file.read(count)


def bytes_after(predictor: Predictor, text: bytes, window: int, sampling: Sampling) -> Iterator[bytes]:
    """Yield the bytes that continue a text, one at a time.

    If the text is shorter than the network's window, zeros are added at its end. The zeros do not affect the scores at
    the positions before them.
    """
    draw = np.random.default_rng(sampling.seed)
    for _ in range(sampling.length):
        text = text[-window:]
        places = np.zeros((1, window), np.uint8)
        places[0, : len(text)] = np.frombuffer(text, np.uint8)
        scores = predictor({INPUT: places}).reshape(window, BYTES)[len(text) - 1]
        following = bytes([_chosen(scores.astype(np.float64), sampling.temperature, draw)])
        if following == SEPARATOR:
            return
        yield following
        text += following


def _chosen(scores: np.ndarray, temperature: float, draw: np.random.Generator) -> int:
    """Choose the next byte by the scores [256]: at random, or the likeliest one if `temperature` is 0.

    NumPy draws the random number, because versions of TensorFlow may draw different numbers.
    """
    if not temperature:
        return int(scores.argmax())
    shares = np.exp((scores - scores.max()) / temperature)
    return int(draw.choice(BYTES, p=shares / shares.sum()))
