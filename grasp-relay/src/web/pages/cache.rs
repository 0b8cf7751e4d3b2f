//! Pages that were made lately, bounded in bytes.

use lru::LruCache;

use crate::web::encoded::EncodedPage;

/// Bytes that count for each page beside its content and its key.
const BYTES_PER_PAGE: usize = 512;

/// Compressed pages by their address. The one that was not used for longest makes room for another.
pub(super) struct PageCache {
    pages: LruCache<String, EncodedPage>,
    bytes: usize,
    max_bytes: usize,
}

impl PageCache {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            pages: LruCache::unbounded(),
            bytes: 0,
            max_bytes,
        }
    }

    /// Returns the page at an address, if it is the one with this tag.
    pub(super) fn get(&mut self, key: &str, tag: &str) -> Option<EncodedPage> {
        let page = self.pages.get(key)?;
        (page.tag.as_deref() == Some(tag)).then(|| page.clone())
    }

    /// Keeps a page, unless it is so large that it would displace many others.
    pub(super) fn insert(&mut self, key: String, page: EncodedPage) {
        let bytes = cost(&key, &page);
        if bytes > self.max_bytes / 16 {
            return;
        }
        if let Some((key, replaced)) = self.pages.push(key, page) {
            self.bytes = self.bytes.saturating_sub(cost(&key, &replaced));
        }
        self.bytes += bytes;
        while self.bytes > self.max_bytes {
            let Some((key, page)) = self.pages.pop_lru() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(cost(&key, &page));
        }
    }
}

fn cost(key: &str, page: &EncodedPage) -> usize {
    key.len() + page.memory() + BYTES_PER_PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::encoded::EncodedBody;

    fn page(tag: &str, bytes: usize) -> EncodedPage {
        let mut random: u32 = 1;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random.to_be_bytes()[0]
        };
        // Random bytes, which do not become smaller.
        let content = (0..bytes).map(|_| next()).collect();
        let mut page = EncodedPage::file("text/plain", false, EncodedBody::new(content));
        page.tag = Some(tag.into());
        page
    }

    #[test]
    fn only_the_current_version_is_returned() {
        let mut cache = PageCache::new(100_000);
        cache.insert("a".into(), page("1", 100));
        assert!(cache.get("a", "1").is_some());
        assert!(cache.get("a", "2").is_none() && cache.get("b", "1").is_none());
    }

    #[test]
    fn many_addresses_take_no_more_than_the_bound() {
        let mut cache = PageCache::new(100_000);
        for number in 0..1_000 {
            cache.insert(number.to_string(), page("1", 2_000));
            assert!(cache.bytes <= 100_000);
        }
        let bytes: usize = cache.pages.iter().map(|(key, page)| cost(key, page)).sum();
        assert_eq!(bytes, cache.bytes);
        assert!(cache.get("999", "1").is_some() && cache.get("0", "1").is_none());
        cache.insert("large".into(), page("1", 50_000));
        assert!(cache.get("large", "1").is_none() && cache.get("999", "1").is_some());
    }

    #[test]
    fn a_page_that_replaces_itself_counts_once() {
        let mut cache = PageCache::new(100_000);
        for _ in 0..100 {
            cache.insert("a".into(), page("1", 2_000));
        }
        assert_eq!(cache.bytes, cost("a", &page("1", 2_000)));
    }
}
