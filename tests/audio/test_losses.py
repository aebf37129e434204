"""The loss equals loops over captions and recordings, and finds the right gradients."""

import math

import pytest
import torch
from torch.nn import functional

from retable.tasks.audio.losses import contrastive, same_recording


def vectors(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def naive(audio, text, recording, temperature):
    """The loss by loops over single cells."""
    n = len(recording)
    cosine = [
        [sum(float(a) * float(b) for a, b in zip(audio[j], text[i], strict=True)) for j in range(n)] for i in range(n)
    ]
    score = [[math.exp(cosine[i][j] / temperature) for j in range(n)] for i in range(n)]
    logs = []
    for i in range(n):
        for j in range(n):
            if recording[i] == recording[j]:
                over_recordings = score[i][j] / sum(score[i])
                over_captions = score[i][j] / sum(row[j] for row in score)
                logs.append((math.log(over_recordings) + math.log(over_captions)) / 2)
    return -sum(logs) / len(logs)


@pytest.mark.parametrize("recording", [[0, 1, 2, 3, 4], [7, 3, 7, 7, 1], [2, 2, 2, 2, 2]])
def test_loss_is_that_of_loops_over_cells(recording):
    audio, text = vectors(2, 5, 6)
    found = contrastive(audio, text, same_recording(torch.tensor(recording)), 0.2)
    assert float(found) == pytest.approx(naive(audio, text, recording, 0.2), rel=1e-12)


def test_without_duplicates_it_is_cross_entropy_both_ways():
    audio, text = vectors(2, 6, 4)
    similarity = text @ audio.T / 0.07
    target = torch.arange(6)
    both = functional.cross_entropy(similarity, target) + functional.cross_entropy(similarity.T, target)
    torch.testing.assert_close(contrastive(audio, text, same_recording(target), 0.07), both / 2)


def test_alike_vectors_cost_the_logarithm_of_their_number():
    alike = vectors(1, 3).expand(8, 3)
    assert float(contrastive(alike, alike, torch.eye(8, dtype=bool), 0.01)) == pytest.approx(math.log(8))


def test_gradients_reach_vectors_and_temperature():
    audio, text = vectors(2, 4, 3)
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    positives = same_recording(torch.tensor([0, 1, 0, 2]))
    audio, text = audio.clone().requires_grad_(), text.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *inputs: contrastive(*inputs[:2], positives, inputs[2]), (audio, text, temperature)
    )
