//! Which of an event's git servers are worth telling the hunter about.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use grasp_core::{CloneUrl, ServiceIdentity};
use nostr::types::Timestamp;

/// No event makes the hunter look in more places than this at a time.
const MOST: usize = 32;

/// Of these, the first that are named are always among them.
const ALWAYS: usize = MOST / 2;

/// Addresses that are looked through; of longer lists it is the beginning, and a stretch that changes with time.
const READ: usize = 128;

/// Some git servers, each once and never ourselves.
///
/// A list can be longer than anybody should be asked. Then it is its beginning and, every time, another stretch of the
/// rest: ten thousand addresses cost no more than a few, and none of them is passed over for ever.
pub fn some_places<'a>(
    urls: impl Iterator<Item = &'a CloneUrl> + Clone,
    service: &ServiceIdentity,
    now: Timestamp,
) -> Vec<CloneUrl> {
    let mut seen = BTreeSet::new();
    let beyond = urls.clone().skip(READ).count();
    let stretch = urls.clone().skip(READ + draw(now, beyond)).take(MOST);
    let mut places: Vec<_> =
        urls.take(READ).chain(stretch).filter(|url| seen.insert(*url)).collect();
    if places.len() > MOST {
        let mut rest = places.split_off(ALWAYS);
        let turn = draw(now, rest.len());
        rest.rotate_left(turn);
        places.extend(rest.into_iter().take(MOST - ALWAYS));
    }
    places.retain(|url| !service.is_own_url(url.as_str()));
    places.into_iter().cloned().collect()
}

/// A number below this one, another every second.
fn draw(now: Timestamp, below: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    (now.as_secs(), below).hash(&mut hasher);
    let drawn = hasher.finish().checked_rem(below as u64).unwrap_or_default();
    usize::try_from(drawn).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> ServiceIdentity {
        "git.example.com".parse().unwrap()
    }

    fn urls(count: usize) -> Vec<CloneUrl> {
        (0..count).map(|n| format!("https://h{n}.example.com/x").parse().unwrap()).collect()
    }

    fn at(urls: &[CloneUrl], second: u64) -> Vec<CloneUrl> {
        some_places(urls.iter(), &service(), Timestamp::from_secs(second))
    }

    #[test]
    fn a_short_list_is_taken_whole_in_its_order_each_once_and_without_ourselves() {
        let urls = urls(20);
        let us: CloneUrl = "https://git.example.com/x/y.git".parse().unwrap();
        let twice: Vec<_> = urls.iter().chain([&us]).chain(&urls).cloned().collect();
        assert_eq!(at(&twice, 7), urls);
    }

    #[test]
    fn a_long_list_costs_no_more_and_nothing_of_it_is_passed_over_for_ever() {
        for count in [33, 100, 128, 129, 1_000] {
            let urls = urls(count);
            let mut seen = BTreeSet::new();
            for second in 0..2_000 {
                let places = at(&urls, second * 120);
                assert_eq!(places.len(), MOST);
                assert_eq!(places[..ALWAYS], urls[..ALWAYS]);
                seen.extend(places);
            }
            assert!(seen.len() * 100 >= count * 95, "{} of {count}", seen.len());
        }
    }
}
