"""The replayed caching allocator, by PyTorch's published rules and by laws that any allocator keeps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.memory.allocator import MIB, CachingAllocator, OutOfMemory, round_request, segment_size

SIZES = st.integers(1, 64 * MIB)


@pytest.mark.parametrize(("nbytes", "block"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)])
def test_requests_round_up_to_512_bytes(nbytes, block):
    assert round_request(nbytes) == block


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments_have_the_sizes_that_pytorch_asks_of_the_driver(block, segment):
    assert segment_size(block) == segment


def test_a_small_block_leaves_its_rest_for_the_next():
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.allocate(100)
    assert (allocator.reserved, allocator.allocated) == (2 * MIB, 4096 * 512)
    allocator.allocate(100)
    assert allocator.reserved == 4 * MIB


def test_a_large_block_is_not_split_when_no_more_than_a_mebibyte_is_left():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(12 * MIB))
    allocator.allocate(11 * MIB)
    assert allocator.allocated == 12 * MIB
    assert allocator.requested == 11 * MIB


def test_a_large_block_is_split_when_more_is_left():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(12 * MIB)
    allocator.allocate(18 * MIB)
    assert allocator.reserved == allocator.allocated == 30 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    big, small = allocator.allocate(40 * MIB), allocator.allocate(20 * MIB)
    allocator.free(big)
    allocator.free(small)
    allocator.allocate(20 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 60 * MIB


def test_freed_neighbours_merge_and_serve_a_larger_request():
    allocator = CachingAllocator()
    parts = [allocator.allocate(4 * MIB) for _ in range(5)]
    assert allocator.reserved == 20 * MIB
    for part in (parts[1], parts[3], parts[2]):
        allocator.free(part)
    allocator.allocate(12 * MIB)
    assert allocator.reserved == 20 * MIB


def test_fragments_do_not_serve_what_does_not_fit_in_any():
    allocator = CachingAllocator()
    parts = [allocator.allocate(4 * MIB) for _ in range(5)]
    allocator.free(parts[0])
    allocator.free(parts[2])
    allocator.allocate(8 * MIB)
    assert allocator.reserved == 40 * MIB


def test_unused_segments_are_given_back_before_memory_runs_out():
    allocator = CachingAllocator(limit=40 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(36 * MIB)
    assert (allocator.reserved, allocator.retries) == (36 * MIB, 1)
    with pytest.raises(OutOfMemory, match="a block of 8,388,608 bytes needs 20,971,520 more"):
        allocator.allocate(8 * MIB)


def test_expandable_segments_serve_what_fragments_a_fixed_one():
    fixed, expandable = CachingAllocator(), CachingAllocator(expandable=True)
    for allocator in (fixed, expandable):
        for size in (30, 50, 70):
            allocator.free(allocator.allocate(size * MIB))
    assert fixed.reserved == 150 * MIB
    assert expandable.reserved == 80 * MIB


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(SIZES, st.integers(0, 3)), max_size=60), st.booleans())
def test_accounts_stay_true_whatever_comes(requests, expandable):
    allocator = CachingAllocator(expandable=expandable)
    live: list[tuple[int, int]] = []
    for nbytes, frees in requests:
        live.append((allocator.allocate(nbytes), nbytes))
        for _ in range(min(frees, len(live))):
            allocator.free(live.pop(len(live) // 2)[0])
        assert allocator.requested == sum(size for _, size in live)
        assert allocator.requested <= allocator.allocated <= allocator.reserved
        assert allocator.allocated % 512 == 0
        assert allocator.reserved % (2 * MIB) == 0
    for handle, _ in live:
        allocator.free(handle)
    assert allocator.allocated == allocator.requested == 0
    assert allocator.peak_reserved == allocator.reserved
    assert allocator.release_unused() == allocator.peak_reserved
    assert allocator.reserved == 0


@settings(deadline=None, max_examples=40)
@given(st.lists(SIZES, min_size=1, max_size=30))
def test_live_blocks_never_overlap(sizes):
    allocator = CachingAllocator()
    handles = [allocator.allocate(size) for size in sizes]
    for handle in handles[::2]:
        allocator.free(handle)
    for size in sizes[::2]:
        allocator.allocate(size)
    spans = sorted((block.address, block.address + block.size) for block, _ in allocator._live.values())
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
