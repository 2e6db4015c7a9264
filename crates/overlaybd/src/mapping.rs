//! One entry of an index: where a run of virtual sectors has its data.

use std::fmt;

/// Bytes of one entry on disk.
pub(crate) const MAPPING_BYTES: u64 = 16;
/// Longest run one entry can describe, in sectors: its length field has 14 bits.
pub(crate) const MAX_MAPPING_SECTORS: u64 = (1 << LENGTH_BITS) - 1;
/// Where runs longer than one entry are cut, in sectors. A multiple of 4 KiB, so that cutting an aligned run leaves
/// aligned pieces.
pub(crate) const SPLIT_SECTORS: u64 = MAX_MAPPING_SECTORS & !7;
/// First sector that no entry can reach. Its number minus one marks padding.
pub(crate) const MAX_SECTOR: u64 = (1 << OFFSET_BITS) - 1;
/// First sector of a file that can hold data: those before it are the header.
pub(crate) const FIRST_DATA_SECTOR: u64 = 8;
/// First data sector that the 55-bit field cannot hold.
pub(crate) const MAX_DATA_SECTOR: u64 = 1 << DATA_BITS;

const OFFSET_BITS: u32 = 50;
const LENGTH_BITS: u32 = 14;
const DATA_BITS: u32 = 55;
const ZEROED: u64 = 1 << DATA_BITS;
const TAG_SHIFT: u32 = 56;

/// A run of virtual sectors and where its bytes are.
///
/// On disk two little-endian words. Word 0: bits 0 to 49 the first virtual sector, bits 50 to 63 the length in sectors.
/// Word 1: bits 0 to 54 the first sector of the data, counted from the start of the file (so the first possible value
/// is 8); bit 55 set when the run reads as zeros; bits 56 to 63 a layer number that has a meaning in memory only.
/// A sector is 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    pub(crate) place: u64,
    pub(crate) target: u64,
}

impl Mapping {
    /// An entry without meaning: writers fill groups and pages with it, readers skip it.
    pub(crate) const PADDING: Mapping = Mapping { place: MAX_SECTOR, target: 0 };

    /// `sectors` is at most [`MAX_MAPPING_SECTORS`], the sectors lie below [`MAX_SECTOR`] and the data below
    /// [`MAX_DATA_SECTOR`].
    pub(crate) fn data(sector: u64, sectors: u64, data_sector: u64) -> Self {
        debug_assert!(sectors <= MAX_MAPPING_SECTORS && sector + sectors <= MAX_SECTOR);
        debug_assert!(data_sector < MAX_DATA_SECTOR);
        Mapping { place: sector | sectors << OFFSET_BITS, target: data_sector }
    }

    /// A run that reads as zeros. Its data sector has no meaning but is checked by readers, so it names the first that
    /// is always valid.
    pub(crate) fn zeroes(sector: u64, sectors: u64) -> Self {
        Mapping { target: FIRST_DATA_SECTOR | ZEROED, ..Mapping::data(sector, sectors, FIRST_DATA_SECTOR) }
    }

    /// First virtual sector.
    pub fn sector(&self) -> u64 {
        self.place & MAX_SECTOR
    }

    /// Length in sectors.
    pub fn sectors(&self) -> u64 {
        self.place >> OFFSET_BITS
    }

    /// First virtual sector after the run.
    pub fn end_sector(&self) -> u64 {
        self.sector() + self.sectors()
    }

    /// First sector of the data in the layer's own file; without meaning when [`is_zeroed`](Self::is_zeroed).
    pub fn data_sector(&self) -> u64 {
        self.target & (MAX_DATA_SECTOR - 1)
    }

    /// Whether the run reads as zeros, whatever is below.
    pub fn is_zeroed(&self) -> bool {
        self.target & ZEROED != 0
    }

    /// The layer number, in memory only.
    pub(crate) fn tag(&self) -> usize {
        usize::from(self.target.to_le_bytes()[7])
    }

    pub(crate) fn with_tag(self, tag: u8) -> Self {
        Mapping { target: self.target & ((1 << TAG_SHIFT) - 1) | u64::from(tag) << TAG_SHIFT, ..self }
    }

    pub(crate) fn is_padding(&self) -> bool {
        self.sector() == MAX_SECTOR && self.sectors() == 0
    }

    /// The part of the run between two virtual sectors that lie inside it.
    pub(crate) fn part(self, from_sector: u64, to_sector: u64) -> Self {
        debug_assert!(
            self.sector() <= from_sector && from_sector < to_sector && to_sector <= self.end_sector()
        );
        let skipped = if self.is_zeroed() { 0 } else { from_sector - self.sector() };
        Mapping {
            place: from_sector | (to_sector - from_sector) << OFFSET_BITS,
            target: self.target + skipped,
        }
    }

    /// The entry as read from a file, its layer number removed.
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        let (mut place, mut target) = ([0; 8], [0; 8]);
        place.copy_from_slice(&bytes[..8]);
        target.copy_from_slice(&bytes[8..]);
        Mapping { place: u64::from_le_bytes(place), target: u64::from_le_bytes(target) }.with_tag(0)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.place.to_le_bytes());
        bytes[8..].copy_from_slice(&self.with_tag(0).target.to_le_bytes());
        bytes
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}, {}) -> ", self.sector(), self.end_sector())?;
        match self.is_zeroed() {
            true => write!(formatter, "zeros")?,
            false => write!(formatter, "{}", self.data_sector())?,
        }
        write!(formatter, " of {}", self.tag())
    }
}

/// Cuts the run of `sectors` from `sector` into entries; `data_sector` is `None` for zeros.
pub(crate) fn split(sector: u64, sectors: u64, data_sector: Option<u64>) -> impl Iterator<Item = Mapping> {
    (0..sectors.div_ceil(SPLIT_SECTORS)).map(move |piece| {
        let skipped = piece * SPLIT_SECTORS;
        let length = (sectors - skipped).min(SPLIT_SECTORS);
        match data_sector {
            Some(data_sector) => Mapping::data(sector + skipped, length, data_sector + skipped),
            None => Mapping::zeroes(sector + skipped, length),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_laid_out_as_on_disk() {
        let bytes = [0xff, 0x47, 0, 0, 0, 0, 0x0c, 0, 0x8a, 0, 0, 0, 0, 0, 0, 0];
        let mapping = Mapping::from_bytes(bytes);
        assert_eq!((mapping.sector(), mapping.sectors(), mapping.data_sector()), (18431, 3, 138));
        assert!(!mapping.is_zeroed());
        assert_eq!(mapping.to_bytes(), bytes);
    }

    #[test]
    fn a_part_of_data_moves_its_start_and_a_part_of_zeros_does_not() {
        assert_eq!(Mapping::data(10, 10, 100).part(14, 16), Mapping::data(14, 2, 104));
        assert_eq!(Mapping::zeroes(10, 10).part(14, 16), Mapping::zeroes(14, 2));
    }

    #[test]
    fn long_runs_are_cut_without_gap() {
        let pieces: Vec<_> = split(5, 2 * SPLIT_SECTORS + 1, Some(8)).collect();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[1], Mapping::data(5 + SPLIT_SECTORS, SPLIT_SECTORS, 8 + SPLIT_SECTORS));
        assert_eq!(pieces[2].end_sector(), 5 + 2 * SPLIT_SECTORS + 1);
    }

    #[test]
    fn the_layer_number_never_reaches_the_disk() {
        assert_eq!(Mapping::data(1, 2, 9).with_tag(7).to_bytes(), Mapping::data(1, 2, 9).to_bytes());
    }
}
