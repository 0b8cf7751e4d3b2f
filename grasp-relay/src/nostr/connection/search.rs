//! Searches for repositories (NIP-50): the words of a filter become the ids of the announcements that have them.
//!
//! The list of repositories is the one that the landing page has, of bounded length and kept for seconds, so a search reads
//! no event.

use nostr::filter::Filter;

use super::super::delivery::{Reads, store_failed};
use crate::web::{Listing, RepositoryList, Search};

/// Replaces searches by ids, with one of the permits for reads.
pub(super) async fn resolve(
    listing: &Listing,
    reads: &Reads,
    filters: Vec<Filter>,
) -> Result<Vec<Filter>, &'static str> {
    let _permit = reads.acquire().await?;
    let list = listing.rows().await.map_err(|error| store_failed(&error))?;
    let find_all = move || {
        let filters = filters.into_iter();
        filters.map(|filter| find(&list, filter)).collect()
    };
    let found = tokio::task::spawn_blocking(find_all).await;
    found.map_err(|_| "error: the search failed")
}

/// Replaces the search of one filter; its other conditions stay.
fn find(list: &RepositoryList, mut filter: Filter) -> Filter {
    let Some(text) = filter.search.take() else {
        return filter;
    };
    let mut found = Search::of_filter(&text).announcements(list);
    if let Some(ids) = &filter.ids {
        found.retain(|id| ids.contains(id));
    }
    filter.ids = Some(found);
    filter
}
