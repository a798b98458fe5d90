"""PyTorch's CUDA caching allocator, replayed: from the sizes a step asks for to the memory a card must have.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` in PyTorch 2.x (see also the PyTorch notes, "CUDA semantics: memory
management"): a request is rounded up to 512 bytes; requests up to 1 MiB are cut from 2 MiB segments, up to 10 MiB from 20 MiB
segments, larger ones get a segment of their own rounded up to 2 MiB; the smallest free block that is large enough is taken, and
split when enough would be left over; freed neighbours in a segment merge; segments are kept until memory runs out.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: Every request is rounded up to a multiple of this.
ROUND: Final = 512
#: Largest request served from the small pool.
SMALL_REQUEST: Final = MIB
#: Segment size of the small pool, and the multiple that large segments are rounded up to.
SMALL_SEGMENT: Final = 2 * MIB
#: Segment size for requests of the large pool below `LARGE_REQUEST`.
LARGE_SEGMENT: Final = 20 * MIB
#: Requests of at least this size get a segment of their own.
LARGE_REQUEST: Final = 10 * MIB


class OutOfMemory(Exception):
    """A request does not fit in the limit even after every unused segment was given back; the message has the sizes."""


def round_request(nbytes: int) -> int:
    """The block size that serves a request of `nbytes` bytes: a multiple of 512, at least 512."""
    return max(ROUND, round_up(nbytes, ROUND))


def round_up(nbytes: int, multiple: int) -> int:
    """`nbytes` rounded up to a multiple of `multiple`."""
    return -(-nbytes // multiple) * multiple


def segment_size(block: int) -> int:
    """The bytes asked of the driver for a block (already rounded) that no free block can serve."""
    if block <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if block < LARGE_REQUEST:
        return LARGE_SEGMENT
    return round_up(block, SMALL_SEGMENT)


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of one segment, linked to its neighbours; `address` is a made-up one that grows with each segment."""

    address: int
    size: int
    pool: "Pool"
    free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def whole_segment(self) -> bool:
        """Whether the block is all that its segment holds."""
        return self.before is None and self.after is None


class Pool:
    """The free blocks of one pool, ordered by size and then address, as the allocator's own set is."""

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self._order: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        """Make `block` available."""
        block.free = True
        insort(self._order, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take `block` out."""
        block.free = False
        del self._order[bisect_left(self._order, (block.size, block.address))]
        del self._blocks[block.address]

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes (the lowest address of equals), or None."""
        place = bisect_left(self._order, (size, -1))
        return None if place == len(self._order) else self._blocks[self._order[place][1]]

    def __iter__(self):
        return iter(list(self._blocks.values()))


class CachingAllocator:
    """The state of one device's caching allocator; `allocate` and `free` update `requested`, `allocated`, `reserved` and peaks.

    `limit` is the memory in bytes that segments may take together (None: no limit). `expandable` replays
    `PYTORCH_ALLOC_CONF=expandable_segments:True`: one segment a pool that grows by 2 or 20 MiB pages at its end.
    """

    def __init__(self, *, limit: int | None = None, expandable: bool = False) -> None:
        self.limit = limit
        self.expandable = expandable
        self.requested = self.allocated = self.reserved = 0
        self.peak_requested = self.peak_allocated = self.peak_reserved = 0
        #: How often unused segments were given back to make room (each costs time on a real device).
        self.retries = 0
        self._pools = {small: Pool(small=small) for small in (True, False)}
        self._ends: dict[bool, Block] = {}
        self._live: dict[int, tuple[Block, int]] = {}
        self._next_address = 0
        self._next_handle = 0

    def allocate(self, nbytes: int) -> int:
        """Serve a request of `nbytes` bytes and return a handle for `free`; OutOfMemory when the limit forbids it.

        A request of no bytes takes no block, as in PyTorch.
        """
        handle = self._next_handle
        self._next_handle += 1
        if nbytes == 0:
            return handle
        size = round_request(nbytes)
        pool = self._pools[size <= SMALL_REQUEST]
        block = pool.best_fit(size) or self._new_block(size, pool)
        pool.remove(block)
        if self._splits(block, size):
            self._split(block, size)
        self._live[handle] = (block, nbytes)
        self.requested += nbytes
        self.allocated += block.size
        self.peak_requested = max(self.peak_requested, self.requested)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return handle

    def free(self, handle: int) -> None:
        """Give the block of `handle` back to its pool, merged with free neighbours."""
        if handle not in self._live:
            return
        block, nbytes = self._live.pop(handle)
        self.requested -= nbytes
        self.allocated -= block.size
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                block.pool.remove(neighbour)
                self._merge(block, neighbour)
        block.pool.add(block)

    def release_unused(self) -> int:
        """Give every fully unused segment back (`torch.cuda.empty_cache`) and return the bytes."""
        before = self.reserved
        for small, pool in self._pools.items():
            for block in pool:
                if self.expandable:
                    self._trim(block, small)
                elif block.whole_segment:
                    pool.remove(block)
                    self.reserved -= block.size
        return before - self.reserved

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        return rest >= ROUND if block.pool.small or self.expandable else rest > SMALL_REQUEST

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.pool, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        if self._ends.get(block.pool.small) is block:
            self._ends[block.pool.small] = rest
        block.pool.add(rest)

    def _merge(self, block: Block, neighbour: Block) -> None:
        if neighbour is block.before:
            block.address = neighbour.address
            block.before = neighbour.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        block.size += neighbour.size
        if self._ends.get(block.pool.small) is neighbour:
            self._ends[block.pool.small] = block

    def _new_block(self, size: int, pool: Pool) -> Block:
        if self.expandable:
            return self._grow(size, pool)
        wanted = segment_size(size)
        self._reserve(wanted, size)
        block = Block(self._next_address, wanted, pool)
        self._next_address += wanted + LARGE_SEGMENT  # segments never touch, so blocks of two never merge
        pool.add(block)
        return block

    def _grow(self, size: int, pool: Pool) -> Block:
        """Map pages at the end of the pool's one segment until a block of `size` is free there."""
        end = self._ends.get(pool.small)
        spare = end.size if end is not None and end.free else 0
        grown = round_up(size - spare, SMALL_SEGMENT if pool.small else LARGE_SEGMENT)
        self._reserve(grown, size)
        end = self._ends.get(pool.small)
        base = (0 if pool.small else LARGE_SEGMENT << 32) if end is None else end.address + end.size
        block = Block(base, grown, pool, before=end)
        if end is not None:
            end.after = block
            if end.free:
                pool.remove(end)
                self._merge(block, end)
        self._ends[pool.small] = block
        pool.add(block)
        return block

    def _trim(self, block: Block, small: bool) -> None:
        """Unmap the whole pages of a free block at the end of an expandable segment."""
        if self._ends.get(small) is not block:
            return
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        keep = round_up(block.address, page) - block.address
        if keep >= block.size:
            return
        block.pool.remove(block)
        self.reserved -= block.size - keep
        if keep:
            block.size = keep
            block.pool.add(block)
        elif block.before is not None:
            block.before.after = None
            self._ends[small] = block.before
        else:
            del self._ends[small]

    def _reserve(self, nbytes: int, request: int) -> None:
        if self.limit is not None and self.reserved + nbytes > self.limit:
            self.retries += 1
            self.release_unused()
            if self.reserved + nbytes > self.limit:
                raise OutOfMemory(
                    f"a block of {request:,} bytes needs {nbytes:,} more from the driver, but {self.reserved:,} of "
                    f"{self.limit:,} bytes are taken ({self.allocated:,} of them in use)"
                )
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
