"""The decode loop: what it writes, against a plain Python model of two induction heads, and its lasting state."""

from __future__ import annotations

import numpy as np
import pytest

from dla.isa.errors import Trap

LIMIT = 32  # tokens written by one run, at most
SCALE = 12.0


def continue_text(text: list[int]) -> list[int]:
    """What the model writes after `text`, which is extended: both heads' attention over all of the past, in f64."""
    written: list[int] = []
    while len(written) < LIMIT and text:
        padded = [0, 0, *text]
        votes = np.zeros(16)
        for head in (0, 1):
            query = padded[len(text) + head]
            scores = np.array([SCALE * (padded[t + head] == query) for t in range(len(text))])
            weights = np.exp(scores - scores.max())
            np.add.at(votes, text, weights / weights.sum())
        token = int(votes.argmax())
        assert np.sort(votes)[-1] - np.sort(votes)[-2] > 1e-3, "the text is ambiguous: rounding would decide"
        if token == 0:
            break
        text.append(token)
        written.append(token)
    return written


def tokens(*values: int) -> dict[str, np.ndarray]:
    """The inputs of a run whose prompt is `values`."""
    return {"prompt": np.array(values, np.int32)}


def assert_written(out: dict[str, np.ndarray], expected: list[int]) -> None:
    """As many tokens as were written, and no others."""
    np.testing.assert_array_equal(out["tokens"], np.array(expected, np.int32), strict=True)


def test_a_repeated_pattern_is_continued(run):
    """1 2 3 4 5 1 2 goes on with 3 4 5 1 2 3 ..., for as long as a run may write."""
    out = run("attention_decode", **tokens(1, 2, 3, 4, 5, 1, 2))
    assert_written(out, [3, 4, 5, *[1, 2, 3, 4, 5] * 6][:LIMIT])


def test_two_tokens_of_context_tell_alike_situations_apart(run):
    """After 7 comes 8 or 9, depending on what came before 7: one head alone could not know."""
    out = run("attention_decode", **tokens(1, 7, 8, 2, 7, 9, 1, 7, 8, 2, 7, 9, 1, 7, 8, 2, 7))
    assert_written(out, [9, *[1, 7, 8, 2, 7, 9] * 6][:LIMIT])


def test_token_zero_ends_the_text(run):
    """The loop stops as soon as the data say so."""
    out = run("attention_decode", **tokens(1, 2, 3, 4, 0, 5, 6, 1, 2))
    assert_written(out, [3, 4])


def test_an_empty_prompt_on_an_empty_cache_writes_nothing(run):
    """Attention over no positions is 0, and 0 is the end."""
    assert_written(run("attention_decode", **tokens()), [])


def test_the_cache_survives_from_run_to_run(load):
    """A run's prompt continues what all runs before it read and wrote: the third knows the first one's pattern."""
    session = load("attention_decode")
    text: list[int] = []
    for prompt in ([1, 2, 3, 4, 1, 2], [5, 6, 7, 5, 6], [4, 1]):
        text += prompt
        out = session.run(tokens(*prompt)).outputs
        assert_written(out, continue_text(text))
    np.testing.assert_array_equal(out["tokens"][:6], [2, 3, 4, 1, 2, 3])


def test_a_full_cache_traps_instead_of_overflowing(load):
    """256 positions hold four rounds of 32 + 32; the next one is refused by ASSERT."""
    session = load("attention_decode")
    prompt = tokens(*[1, 2] * 16)
    for _ in range(4):
        session.run(prompt)
    with pytest.raises(Trap, match="assert"):
        session.run(prompt)
