"""How products are cut: which tile shapes, splits and stages are chosen for which shapes."""

from __future__ import annotations

from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.tilings import Choice, Tile


def test_large_products_get_large_tiles_and_are_not_split():
    """Where there are more tiles than blocks anyway."""
    assert tilings.offers(4096, 4096, 1, 132, 4096)[0].choice == Choice(Tile(128, 256), 1)


def test_splits_fit_the_machine_and_the_depth():
    """All parts of a tile run at the same time, and each has at least two stages."""
    for rows, columns, depth in [(49, 512, 4608), (128, 4096, 4096), (512, 512, 512), (64, 64, 64), (17, 8, 128)]:
        choice = tilings.offers(rows, columns, 1, 132, depth)[0].choice
        tiles = -(-rows // choice.tile.rows) * -(-columns // choice.tile.columns)
        assert choice.splits == 1 or (tiles * choice.splits <= 132 and depth // 64 >= 2 * choice.splits)


def test_few_deep_tiles_are_split():
    """Else most blocks would have nothing to do."""
    assert tilings.offers(128, 128, 1, 132, 8192)[0].choice.splits > 1


def test_stages_and_scratch_memory_fit_the_ring():
    """Two stages of every tile; and of the smaller ones, a stage and all sums."""
    for tile in tilings.TILES:
        assert 3 * tile.granules * tile.most_slices <= 24
        assert tile not in tilings.EXACT_TILES or tile.granules + tile.scratch_granules <= 24
        assert tile.columns * tile.rows == 128 * 256 or tile.granules * tile.most_slices + tile.scratch_granules <= 24


def test_stages_are_as_large_as_leaves_each_part_of_the_depth_two_of_them():
    """A short depth is not brought by one copy that the first product waits for, nor by more copies than it takes."""
    for total in range(1, 40):
        for splits in (1, 2, 4):
            choice, share = Choice(Tile(128, 64), splits), total // splits
            slices = tilings.slices_of(choice, total, b_across=True)
            assert slices == 1 or share // slices >= 2
            assert slices == choice.tile.most_slices or share // (2 * slices) < 2
