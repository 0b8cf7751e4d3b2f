//! Texts that were rendered lately, by what they were rendered from, bounded in bytes.
//!
//! A push changes the address or the version of all pages of a branch, and few of its documents and files.

use bitcoin_hashes::sha256;
use lru::LruCache;

use super::job::Job;

/// Bytes that count for each text beside its own.
const BYTES_PER_TEXT: usize = 128;

/// What a text was rendered from: the whole job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct JobHash(sha256::Hash);

impl JobHash {
    pub(super) fn of(job: &Job<'_>) -> Self {
        Self(sha256::Hash::hash(&job.encode()))
    }
}

/// Rendered texts. The one that was not used for longest makes room for another.
pub(super) struct RenderedTexts {
    texts: LruCache<JobHash, String>,
    bytes: usize,
    max_bytes: usize,
}

impl RenderedTexts {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            texts: LruCache::unbounded(),
            bytes: 0,
            max_bytes,
        }
    }

    pub(super) fn get(&mut self, job: &JobHash) -> Option<String> {
        self.texts.get(job).cloned()
    }

    pub(super) fn insert(&mut self, job: JobHash, html: String) {
        self.bytes += html.len() + BYTES_PER_TEXT;
        if let Some((_, replaced)) = self.texts.push(job, html) {
            self.bytes -= replaced.len() + BYTES_PER_TEXT;
        }
        while self.bytes > self.max_bytes {
            let Some((_, oldest)) = self.texts.pop_lru() else {
                break;
            };
            self.bytes -= oldest.len() + BYTES_PER_TEXT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(file_name: &str, text: &str) -> JobHash {
        JobHash::of(&Job::Code { file_name, text })
    }

    #[test]
    fn a_text_is_kept_for_the_same_job_only() {
        let mut texts = RenderedTexts::new(100_000);
        texts.insert(hash("a.rs", "fn"), "<b>".into());
        assert_eq!(texts.get(&hash("a.rs", "fn")), Some("<b>".into()));
        assert_eq!(texts.get(&hash("a.py", "fn")), None);
        assert_eq!(texts.get(&hash("a.rs", "fn ")), None);
    }

    #[test]
    fn many_texts_take_no_more_than_the_bound() {
        let mut texts = RenderedTexts::new(100_000);
        for number in 0..1_000 {
            texts.insert(hash("a.rs", &number.to_string()), "x".repeat(1_000));
            texts.insert(hash("a.rs", &number.to_string()), "x".repeat(1_000));
            assert!(texts.bytes <= 100_000);
        }
        let sum: usize = texts
            .texts
            .iter()
            .map(|(_, html)| html.len() + BYTES_PER_TEXT)
            .sum();
        assert_eq!(sum, texts.bytes);
        assert!(
            texts.get(&hash("a.rs", "999")).is_some() && texts.get(&hash("a.rs", "0")).is_none()
        );
        texts.insert(hash("large.rs", ""), "x".repeat(200_000));
        assert_eq!((texts.bytes, texts.texts.len()), (0, 0));
    }
}
