//! Size limits of requests to a relay.

/// Size limits of requests to one relay.
///
/// Limited by bytes and by counts. Starts with values that all known relays accept, and is only ever lowered, to
/// what a relay advertises or by what it refuses.
///
/// ```
/// use grasp_sync::index::RequestBudget;
///
/// let budget = RequestBudget::default().lowered_to_message_bytes(64 * 1024).lowered_to_filters_per_req(3);
/// assert_eq!((budget.message_bytes(), budget.filters_per_req()), (64 * 1024, 3));
/// assert_eq!(budget.lowered_to_filters_per_req(20).filters_per_req(), 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBudget {
    values_per_filter: usize,
    filter_bytes: usize,
    message_bytes: usize,
    filters_per_req: usize,
}

impl RequestBudget {
    /// Upper limit of the values in a filter, independent of the settings.
    pub const MAX_VALUES_PER_FILTER: usize = 1_000;
    /// The smallest filter into which every value fits, even if written in six-byte escapes.
    pub const MIN_FILTER_BYTES: usize = 8 * 1024;

    /// Sets the number of values per filter, from one to [`Self::MAX_VALUES_PER_FILTER`].
    #[must_use]
    pub fn with_values_per_filter(self, values: usize) -> Self {
        Self { values_per_filter: values.clamp(1, Self::MAX_VALUES_PER_FILTER), ..self }
    }

    /// Lowers the length of a filter, to no less than [`Self::MIN_FILTER_BYTES`].
    #[must_use]
    pub fn lowered_to_filter_bytes(self, bytes: usize) -> Self {
        Self { filter_bytes: self.filter_bytes.min(bytes).max(Self::MIN_FILTER_BYTES), ..self }
    }

    /// Lowers the length of a message, to no less than one filter of [`Self::MIN_FILTER_BYTES`] needs. A relay that
    /// accepts less could not accept the events either.
    #[must_use]
    pub fn lowered_to_message_bytes(self, bytes: usize) -> Self {
        let min_bytes = Self::MIN_FILTER_BYTES + REQ_BYTES + 1;
        let message_bytes = self.message_bytes.min(bytes).max(min_bytes);
        let budget = self.lowered_to_filter_bytes(message_bytes - REQ_BYTES - 1);
        Self { message_bytes, ..budget }
    }

    /// Lowers the number of filters per REQ, to no less than one.
    #[must_use]
    pub fn lowered_to_filters_per_req(self, filters: usize) -> Self {
        Self { filters_per_req: self.filters_per_req.min(filters).max(1), ..self }
    }

    /// Returns the maximum number of values per filter.
    pub fn values_per_filter(&self) -> usize {
        self.values_per_filter
    }

    /// Returns the maximum length of a filter as JSON, with `since`, `until` and `limit`.
    pub fn filter_bytes(&self) -> usize {
        self.filter_bytes
    }

    /// Returns the maximum length of a REQ as JSON.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Returns the maximum number of filters per REQ.
    pub fn filters_per_req(&self) -> usize {
        self.filters_per_req
    }
}

impl Default for RequestBudget {
    /// 100 values and 32 KiB per filter, 10 filters and 96 KiB per request.
    fn default() -> Self {
        Self {
            values_per_filter: 100,
            filter_bytes: 32 * 1024,
            message_bytes: 96 * 1024,
            filters_per_req: 10,
        }
    }
}

/// Bytes of `["REQ",""]` with the longest subscription id that relays accept; each filter adds a comma.
pub(super) const REQ_BYTES: usize = r#"["REQ",""]"#.len() + 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_message_shortens_filters() {
        let budget = RequestBudget::default().lowered_to_message_bytes(16 * 1024);
        assert_eq!(budget.filter_bytes(), 16 * 1024 - REQ_BYTES - 1);
        assert_eq!(budget.lowered_to_message_bytes(1 << 20), budget);
    }

    #[test]
    fn counts_stay_within_their_bounds() {
        let budget = RequestBudget::default();
        assert_eq!(budget.with_values_per_filter(0).values_per_filter(), 1);
        assert_eq!(budget.with_values_per_filter(9_999).values_per_filter(), 1_000);
        assert_eq!(budget.lowered_to_filters_per_req(0).filters_per_req(), 1);
    }
}
