//! Packs encoded by hand: small, valid, and costly to read.

use std::io::Write as _;

use bitcoin_hashes::Sha1;
use flate2::Compression;
use flate2::write::ZlibEncoder;

const TREE: u8 = 2;
const BLOB: u8 = 3;
const DELTA: u8 = 6;

/// A pack being written.
struct Pack {
    bytes: Vec<u8>,
    objects: u32,
}

/// The position at which an entry of a pack begins.
type Start = usize;

impl Pack {
    fn new() -> Self {
        Self {
            bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(),
            objects: 0,
        }
    }

    /// Adds an object, and returns its position.
    fn add(&mut self, kind: u8, content: &[u8]) -> Start {
        let start = self.begin(kind, content.len());
        self.deflate(content);
        start
    }

    /// Adds an object as a delta of an earlier one.
    fn add_delta(&mut self, base: Start, delta: &[u8]) -> Start {
        let start = self.begin(DELTA, delta.len());
        let mut distance = start - base;
        let mut number = vec![(distance & 0x7f) as u8];
        while distance > 0x7f {
            distance = (distance >> 7) - 1;
            number.insert(0, (distance & 0x7f) as u8 | 0x80);
        }
        self.bytes.extend(number);
        self.deflate(delta);
        start
    }

    fn begin(&mut self, kind: u8, mut size: usize) -> Start {
        let start = self.bytes.len();
        self.objects += 1;
        let mut byte = kind << 4 | (size & 0xf) as u8;
        size >>= 4;
        while size > 0 {
            self.bytes.push(byte | 0x80);
            byte = (size & 0x7f) as u8;
            size >>= 7;
        }
        self.bytes.push(byte);
        start
    }

    fn deflate(&mut self, content: &[u8]) {
        let mut encoder = ZlibEncoder::new(&mut self.bytes, Compression::best());
        encoder.write_all(content).expect("a write to memory");
        encoder.finish().expect("a write to memory");
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.objects.to_be_bytes());
        let checksum = Sha1::hash(&self.bytes).to_byte_array();
        self.bytes.extend(checksum);
        self.bytes
    }
}

fn id(kind: &str, content: &[u8]) -> [u8; 20] {
    let head = format!("{kind} {}\0", content.len());
    Sha1::hash(&[head.as_bytes(), content].concat()).to_byte_array()
}

/// Returns the beginning of a delta: the sizes of its base and of its result.
fn sizes(base: usize, result: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut size in [base, result] {
        while size > 0x7f {
            bytes.push((size & 0x7f) as u8 | 0x80);
            size >>= 7;
        }
        bytes.push(size as u8);
    }
    bytes
}

/// Returns the instruction of a delta to copy a part of its base.
fn copy(from: usize, length: usize) -> [u8; 8] {
    let ([a, b, c, d, ..], [x, y, z, ..]) = (from.to_le_bytes(), length.to_le_bytes());
    [0xff, a, b, c, d, x, y, z]
}

/// Returns the id and a pack of a commit with this number of trees of 98 KB, all of which are one chain of deltas.
pub(crate) fn delta_chain(length: usize) -> (String, Vec<u8>) {
    let mut pack = Pack::new();
    let empty = id("blob", b"");
    pack.add(BLOB, b"");
    let entry = |name: String| [name.as_bytes(), &empty].concat();
    let rest: Vec<u8> = (0..2_800)
        .flat_map(|n| entry(format!("100644 f{n:06}\0")))
        .collect();
    let tree = |n: usize| [entry(format!("100644 a{n:08}\0")), rest.clone()].concat();
    let first = tree(0);
    let mut start = pack.add(TREE, &first);
    let mut ids = vec![id("tree", &first)];
    for n in 1..length {
        let mut delta = sizes(first.len(), first.len());
        delta.extend(copy(0, 8));
        delta.push(8);
        delta.extend(format!("{n:08}").as_bytes());
        delta.extend(copy(16, first.len() - 16));
        start = pack.add_delta(start, &delta);
        ids.push(id("tree", &tree(n)));
    }
    // Sorted so that no tree is near the one that was read before it.
    ids.sort_unstable();
    let entries = ids.iter().enumerate();
    let root = entries.flat_map(|(n, id)| [format!("40000 d{n:08}\0").as_bytes(), id].concat());
    commit(pack, &root.collect::<Vec<u8>>())
}

/// Returns the id and a pack of a commit with a file of this number of MiB that is a delta of one MiB.
pub(crate) fn delta_bomb(mebibytes: usize) -> (String, Vec<u8>) {
    const MIB: usize = 1 << 20;
    let (mut pack, base) = (Pack::new(), vec![b'x'; MIB]);
    let start = pack.add(BLOB, &base);
    let mut delta = sizes(MIB, mebibytes * MIB);
    (0..mebibytes).for_each(|_| delta.extend(copy(0, MIB)));
    pack.add_delta(start, &delta);
    let root = [&b"100644 base\0"[..], &id("blob", &base)].concat();
    commit(pack, &root)
}

fn commit(mut pack: Pack, root: &[u8]) -> (String, Vec<u8>) {
    pack.add(TREE, root);
    let hex = |id: [u8; 20]| {
        id.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let tree = hex(id("tree", root));
    let text = format!("tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n");
    pack.add(1, text.as_bytes());
    (hex(id("commit", text.as_bytes())), pack.finish())
}
