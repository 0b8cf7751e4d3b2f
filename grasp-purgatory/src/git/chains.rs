//! The length of a pack's delta chains, computed without unpacking an object.
//!
//! To read an object at the end of a chain git applies every delta before it. A pack of two megabytes can hold a
//! chain of twenty thousand large trees, and walking through those takes git half an hour. So a pack that was sent
//! to us is looked at before any object of it is read: each entry begins with its kind and where its base is.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The longest delta chain that is accepted. Git makes chains of 50, and of 250 where it was told to pack tightly.
pub(super) const MAX_CHAIN: u16 = 250;

/// Bytes of a pack that are read at once.
const WINDOW: usize = 256 * 1024;

/// The longest beginning of an entry that matters: a size of up to ten bytes, then the id or distance of its base.
const LONGEST_HEAD: usize = 32;

/// Bytes of an object's id.
const ID: usize = 20;

/// Offset of the ids in the index of a pack (version 2): after eight bytes and 256 counts.
const IDS: u64 = 8 + 256 * 4;

/// Returns whether no delta chain of a pack is longer than [`MAX_CHAIN`].
pub(super) fn are_short(pack: &Path, index: &Path) -> io::Result<bool> {
    let index = PackIndex::open(index)?;
    let by_id = index.starts()?;
    let mut ids = None;
    let mut starts = by_id.clone();
    starts.sort_unstable();
    let mut pack = BufReader::with_capacity(WINDOW, File::open(pack)?);
    let mut position = 0;
    let mut bases = Vec::with_capacity(starts.len());
    for start in &starts {
        let head = head_at(&mut pack, &mut position, *start)?;
        let base = match base(&head).ok_or_else(malformed)? {
            Base::None => None,
            Base::Distance(distance) => start.checked_sub(distance),
            Base::Id(id) => {
                let ids = match &mut ids {
                    Some(ids) => ids,
                    none => none.insert(index.ids()?),
                };
                ids.binary_search(&id)
                    .ok()
                    .and_then(|at| by_id.get(at).copied())
            }
        };
        let base = base.and_then(|base| starts.binary_search(&base).ok());
        bases.push(base.and_then(|base| u32::try_from(base).ok()));
    }
    Ok(are_at_most(MAX_CHAIN, &bases))
}

/// Returns whether no chain has more deltas than this. Each entry names the position of its base.
fn are_at_most(most: u16, bases: &[Option<u32>]) -> bool {
    let mut depths: Vec<Option<u16>> = vec![None; bases.len()];
    let mut chain = Vec::new();
    for entry in 0..bases.len() {
        let mut next = Some(entry);
        let mut depth = 0;
        while let Some(entry) = next {
            if let Some(known) = depths.get(entry).copied().flatten() {
                depth = known + 1;
                break;
            }
            if chain.len() > usize::from(most) {
                return false;
            }
            chain.push(entry);
            next = bases
                .get(entry)
                .copied()
                .flatten()
                .map(|base| base as usize);
        }
        while let Some(entry) = chain.pop() {
            if depth > most {
                return false;
            }
            if let Some(known) = depths.get_mut(entry) {
                *known = Some(depth);
            }
            depth += 1;
        }
    }
    true
}

/// The object that an entry of a pack is a delta of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// The entry is a whole object.
    None,
    /// The object whose entry begins so many bytes before.
    Distance(u64),
    /// The object with this id.
    Id([u8; ID]),
}

/// Reads the base of an entry that begins with these bytes.
fn base(head: &[u8]) -> Option<Base> {
    let (first, mut rest) = head.split_first()?;
    let mut last = *first;
    while last & 0x80 != 0 {
        (last, rest) = rest.split_first().map(|(byte, rest)| (*byte, rest))?;
    }
    match (first >> 4) & 7 {
        1..=4 => Some(Base::None),
        6 => distance(rest).map(Base::Distance),
        7 => rest.first_chunk().copied().map(Base::Id),
        _ => None,
    }
}

/// Reads the distance of a base: seven bits a byte, the highest first, each further byte counting one more.
fn distance(bytes: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (position, byte) in bytes.iter().enumerate() {
        let carry = u64::from(position > 0);
        value = value
            .checked_add(carry)?
            .checked_mul(128)?
            .checked_add(u64::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The index of a pack (version 2): the ids of its objects in their order, and where the entry of each begins.
pub(super) struct PackIndex {
    file: File,
    count: u64,
}

impl PackIndex {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let mut number = [0; 4];
        file.read_exact_at(&mut number, IDS - 4)?;
        Ok(Self {
            file,
            count: u32::from_be_bytes(number).into(),
        })
    }

    /// Returns the number of objects.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the ids of all objects.
    pub(super) fn ids(&self) -> io::Result<Vec<[u8; ID]>> {
        let ids = read_at(&self.file, IDS, self.count * ID as u64)?;
        Ok(ids
            .chunks_exact(ID)
            .filter_map(|id| id.first_chunk().copied())
            .collect())
    }

    /// Returns the offsets of the objects' entries, in the order of their ids.
    fn starts(&self) -> io::Result<Vec<u64>> {
        // Between ids and positions are checksums, of four bytes each.
        let positions = IDS + self.count * (ID as u64 + 4);
        let mut starts = Vec::new();
        for number in read_at(&self.file, positions, self.count * 4)?.chunks_exact(4) {
            let number = number
                .first_chunk()
                .copied()
                .map(u32::from_be_bytes)
                .unwrap_or_default();
            // The highest bit says that the position is the number of a longer one, after all short ones.
            starts.push(match number.checked_sub(1 << 31) {
                None => u64::from(number),
                Some(long) => {
                    let (mut start, after) = ([0; 8], positions + self.count * 4);
                    self.file
                        .read_exact_at(&mut start, after + u64::from(long) * 8)?;
                    u64::from_be_bytes(start)
                }
            });
        }
        Ok(starts)
    }
}

/// Reads the beginning of the entry at `start`. The pack is read in large pieces, up to `position` so far.
fn head_at(pack: &mut BufReader<File>, position: &mut i64, start: u64) -> io::Result<Vec<u8>> {
    let start = i64::try_from(start).map_err(|_| malformed())?;
    pack.seek_relative(start - *position)?;
    let mut head = Vec::with_capacity(LONGEST_HEAD);
    pack.take(LONGEST_HEAD as u64).read_to_end(&mut head)?;
    *position = start + head.len() as i64;
    Ok(head)
}

fn read_at(file: &File, position: u64, length: u64) -> io::Result<Vec<u8>> {
    let is_there = position
        .checked_add(length)
        .is_some_and(|end| file.metadata().is_ok_and(|metadata| end <= metadata.len()));
    let length = usize::try_from(length)
        .ok()
        .filter(|_| is_there)
        .ok_or_else(malformed)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, position)?;
    Ok(bytes)
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_of_an_entry_is_read_from_its_first_bytes() {
        assert_eq!(base(&[0x1f]), Some(Base::None));
        assert_eq!(base(&[0x9f, 0x81, 0x01]), Some(Base::None));
        assert_eq!(base(&[0x65, 0x07]), Some(Base::Distance(7)));
        assert_eq!(base(&[0x65, 0x80, 0x00]), Some(Base::Distance(128)));
        assert_eq!(base(&[0x65, 0xff, 0x7f]), Some(Base::Distance(16_511)));
        assert_eq!(
            base(&[&[0xf5, 0x01][..], &[9; ID]].concat()),
            Some(Base::Id([9; ID]))
        );
        for cut in [
            &[][..],
            &[0x9f],
            &[0x65],
            &[0x65, 0x80],
            &[0x75, 1, 2],
            &[0x55],
        ] {
            assert_eq!(base(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn the_length_of_a_chain_is_independent_of_the_order_of_entries() {
        let chain = |length: u32| (0..=length).map(|n| n.checked_sub(1)).collect::<Vec<_>>();
        let backwards = |length: u32| {
            (1..=length + 1)
                .map(|n| (n <= length).then_some(n))
                .collect::<Vec<_>>()
        };
        for bases in [chain as fn(u32) -> Vec<Option<u32>>, backwards] {
            assert!(are_at_most(10, &bases(10)));
            assert!(!are_at_most(10, &bases(11)));
            assert!(are_at_most(0, &bases(0)));
        }
        assert!(
            are_at_most(1, &[None, Some(0), Some(0), Some(0)]),
            "many deltas of one base are not a chain"
        );
        assert!(!are_at_most(5, &[Some(1), Some(0)]), "a cycle has no end");
    }
}
