//! Git's checksums at the end of packs and their indexes.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use bitcoin_hashes::{HashEngine, sha1};

/// Bytes of a checksum.
const CHECKSUM: usize = 20;

/// Bytes that are read at once.
const WINDOW: usize = 256 * 1024;

/// The state of the files of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Soundness {
    Sound,
    /// The pack is as it was written, its index is missing or damaged.
    Unindexed,
    Damaged,
}

/// Reads a pack and the files beside it, and compares their checksums. A damaged reverse index is removed: git does without.
pub(in crate::git) fn check(pack: &Path, bytes: u64) -> io::Result<Soundness> {
    if pack.metadata()?.len() != bytes {
        return Ok(Soundness::Damaged);
    }
    let Some((_, checksum)) = last_checksums(pack)? else { return Ok(Soundness::Damaged) };
    let name = pack.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    // A pack is named after its content.
    if name.strip_prefix("pack-") != Some(&hex(&checksum)) {
        return Ok(Soundness::Damaged);
    }
    let belongs = |kind: &str| -> io::Result<bool> {
        let file = pack.with_extension(kind);
        Ok(file.exists() && last_checksums(&file)?.is_some_and(|(of_pack, _)| of_pack == checksum))
    };
    let reverse = pack.with_extension("rev");
    if reverse.exists() && !belongs("rev")? {
        std::fs::remove_file(reverse)?;
    }
    Ok(if belongs("idx")? { Soundness::Sound } else { Soundness::Unindexed })
}

/// Returns the last two checksums of a file; `None` if the very last is not that of what is before it.
fn last_checksums(file: &Path) -> io::Result<Option<([u8; CHECKSUM], [u8; CHECKSUM])>> {
    let mut file = BufReader::with_capacity(WINDOW, File::open(file)?);
    let mut engine = sha1::Hash::engine();
    let (mut tail, mut buffer) = (Vec::new(), vec![0; WINDOW]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        tail.extend_from_slice(buffer.get(..read).unwrap_or_default());
        // The last two checksums are held back; they are not known before the end.
        let rest = tail.split_off(tail.len().saturating_sub(2 * CHECKSUM));
        engine.input(&tail);
        tail = rest;
    }
    let [before, last] = [tail.first_chunk().copied(), tail.last_chunk().copied()];
    let (Some(before), Some(last), true) = (before, last, tail.len() == 2 * CHECKSUM) else {
        return Ok(None);
    };
    engine.input(&before);
    Ok((sha1::Hash::from_engine(engine).to_byte_array() == last).then_some((before, last)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_checksum(mut content: Vec<u8>) -> (Vec<u8>, [u8; CHECKSUM]) {
        let checksum = sha1::Hash::hash(&content).to_byte_array();
        content.extend(checksum);
        (content, checksum)
    }

    #[test]
    fn tells_damaged_from_unindexed_packs() {
        let dir = tempfile::tempdir().unwrap();
        let (pack, checksum) = with_checksum(vec![7; WINDOW + 5]);
        let (index, _) = with_checksum([&[1; 100][..], &checksum].concat());
        let file = dir.path().join(format!("pack-{}.pack", hex(&checksum)));
        let bytes = pack.len() as u64;
        std::fs::write(&file, &pack).unwrap();
        let found = || check(&file, bytes).unwrap();
        assert_eq!(found(), Soundness::Unindexed);
        std::fs::write(file.with_extension("rev"), b"nothing").unwrap();
        std::fs::write(file.with_extension("idx"), &index).unwrap();
        assert_eq!(found(), Soundness::Sound);
        assert!(!file.with_extension("rev").exists());
        std::fs::write(file.with_extension("idx"), &index[1..]).unwrap();
        assert_eq!(found(), Soundness::Unindexed);
        assert_eq!(check(&file, bytes + 1).unwrap(), Soundness::Damaged);
        let mut flipped = pack.clone();
        flipped[1_000] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        assert_eq!(found(), Soundness::Damaged);
        let other = dir.path().join("pack-1234.pack");
        std::fs::write(&other, &pack).unwrap();
        assert_eq!(check(&other, bytes).unwrap(), Soundness::Damaged, "another pack's name");
    }
}
