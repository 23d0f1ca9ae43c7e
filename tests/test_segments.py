"""Segments: offsets validated once."""

import pytest
import torch

from torch_gpuprims import Segments, segment_topk


class TestSegments:
    def test_made_from_lengths_and_ids(self, device):
        lengths = torch.tensor([2, 0, 3], device=device)
        segments = Segments.from_lengths(lengths)
        assert segments.indptr.tolist() == [0, 2, 2, 5] and segments.indptr.dtype == torch.int32
        assert (len(segments), segments.numel) == (3, 5)
        assert torch.equal(segments.lengths().long(), lengths)
        assert segments.ids().tolist() == [0, 0, 2, 2, 2]
        assert torch.equal(Segments.from_ids(segments.ids(), 3).indptr, segments.indptr)
        assert Segments.from_ids(segments.ids()).num_segments == 3
        assert Segments.from_ids(segments.ids()[:0], 2).indptr.tolist() == [0, 0, 0]
        assert len(Segments(torch.zeros(1, dtype=torch.int64, device=device))) == 0

    @pytest.mark.parametrize(
        "words, make",
        [
            ("indptr must start at 0, got 1", lambda t: Segments(t([1, 2]))),
            ("indptr must not decrease, but indptr[2] = 1 follows 3", lambda t: Segments(t([0, 3, 1, 0]))),
            ("indptr must end at the number of elements (7), got 5", lambda t: Segments(t([0, 5]), 7)),
            ("indptr must have at least 1 element, got 0", lambda t: Segments(t([0])[:0])),
            ("indptr must have 1 dimension, got 2", lambda t: Segments(t([[0, 1]]))),
            ("indptr must be int32 or int64, got float32", lambda t: Segments(t([0.0]))),
            ("indptr must be a tensor, got list", lambda t: Segments([0, 1])),
            (
                "lengths must not be negative, but lengths[1] = -2",
                lambda t: Segments.from_lengths(t([1, -2])),
            ),
            ("ids must not decrease, but ids[1] = 0 follows 1", lambda t: Segments.from_ids(t([1, 0]))),
            ("ids must be in [0, 2), got 2", lambda t: Segments.from_ids(t([0, 2]), 2)),
        ],
    )
    def test_errors_name_the_first_bad_entry(self, words, make, device):
        with pytest.raises(ValueError) as error:
            make(lambda data: torch.tensor(data, device=device))
        assert str(error.value) == f"Segments: {words}"

    def test_pytree_to_and_pickle(self, device):
        import copy

        from torch.utils import _pytree

        segments = Segments(torch.tensor([0, 2, 5], device=device))
        leaves, spec = _pytree.tree_flatten(segments)
        back = _pytree.tree_unflatten(leaves, spec)
        assert back.promises == 0 and back.numel == 5
        assert segments.to(device) is segments
        again = copy.deepcopy(segments)
        assert torch.equal(again.indptr, segments.indptr) and again.promises == segments.promises == 7
        x = torch.rand(5, device=device)
        assert torch.equal(segment_topk(x, back, 2).indices, segment_topk(x, segments, 2).indices)
