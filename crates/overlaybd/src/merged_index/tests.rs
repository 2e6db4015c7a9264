use proptest::prelude::*;

use super::*;

fn layer(gaps_and_lengths: &[(u64, u64, bool)]) -> Vec<Mapping> {
    let mut sector = 0;
    gaps_and_lengths
        .iter()
        .map(|&(gap, length, zeroed)| {
            let start = sector + gap;
            sector = start + length;
            if zeroed {
                Mapping::zeroes(start, length)
            } else {
                Mapping::data(start, length, 1000 + start * 3)
            }
        })
        .collect()
}

fn layers() -> impl Strategy<Value = Vec<Vec<Mapping>>> {
    let entry = (0..6u64, 1..9u64, proptest::bool::weighted(0.2));
    prop::collection::vec(prop::collection::vec(entry, 0..40).prop_map(|entries| layer(&entries)), 0..9)
}

/// What each sector shows, found by looking through the layers from the top.
fn visible(layers: &[Vec<Mapping>], sector: u64) -> Option<Mapping> {
    layers.iter().enumerate().rev().find_map(|(number, mappings)| {
        let mapping = mappings.iter().find(|m| m.sector() <= sector && sector < m.end_sector())?;
        Some(mapping.part(sector, sector + 1).with_tag(u8::try_from(number).unwrap()))
    })
}

fn merge(layers: &[Vec<Mapping>]) -> impl Iterator<Item = Mapping> {
    let merge = Merge::new(layers.iter().map(Vec::as_slice).collect());
    merge.map(|(layer, mapping)| mapping.with_tag(u8::try_from(layer).unwrap()))
}

proptest! {
    #[test]
    fn a_merge_shows_the_top_most_layer_at_every_sector(layers in layers()) {
        let merged: Vec<Mapping> = merge(&layers).collect();
        prop_assert!(merged.is_sorted_by(|a, b| a.end_sector() <= b.sector()));
        let index = MergedIndex::new(merged.into_iter());
        for sector in 0..600 {
            let found = index.range(sector, sector + 1).next();
            prop_assert_eq!(found, visible(&layers, sector));
        }
    }

    #[test]
    fn a_range_gives_exactly_the_parts_inside_it(layers in layers(), start in 0..300u64, length in 1..200u64) {
        let index = MergedIndex::new(merge(&layers));
        let mut cursor = start;
        for part in index.range(start, start + length) {
            for gap in cursor..part.sector() {
                prop_assert_eq!(visible(&layers, gap), None);
            }
            for sector in part.sector()..part.end_sector() {
                prop_assert_eq!(Some(part.part(sector, sector + 1)), visible(&layers, sector));
            }
            cursor = part.end_sector();
        }
        for gap in cursor..start + length {
            prop_assert_eq!(visible(&layers, gap), None);
        }
    }
}

#[test]
fn every_size_around_the_node_size_is_searched_right() {
    for count in [0, 1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 70_000] {
        let index = MergedIndex::new((0..count).map(|i| Mapping::data(i * 2 + 1, 1, 8 + i)));
        for i in (0..count).chain([count]) {
            assert_eq!(index.upper_bound(i * 2), usize::try_from(i).unwrap());
            assert_eq!(index.range(i * 2, i * 2 + 1).count(), 0);
            let hit = index.range(i * 2 + 1, i * 2 + 2).next().map(|m| m.data_sector());
            assert_eq!(hit, (i < count).then_some(8 + i));
        }
    }
}

#[test]
fn sectors_near_the_largest_are_found() {
    let last = MAX_SECTOR - 8;
    let index = MergedIndex::new([Mapping::data(0, 8, 8), Mapping::data(last, 8, 16)].into_iter());
    let found: Vec<_> = index.range(4, MAX_SECTOR).collect();
    assert_eq!(found, [Mapping::data(4, 4, 12), Mapping::data(last, 8, 16)]);
}

#[test]
fn entries_above_two_tebibytes_do_not_disturb_those_at_zero() {
    let far = 1 << 32;
    let index = MergedIndex::new([Mapping::data(0, 8, 8), Mapping::data(far, 8, 16)].into_iter());
    assert_eq!(index.range(0, 8).next(), Some(Mapping::data(0, 8, 8)));
    assert_eq!(index.range(far + 1, far + 2).next(), Some(Mapping::data(far + 1, 1, 17)));
}
