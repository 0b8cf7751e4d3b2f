//! How much a relay takes at a time.

/// How much one relay is given at a time.
///
/// Bytes decide, counts are a further ceiling. Everything starts at what all known relays take and is only ever
/// lowered, by what a relay advertises or by what it has refused.
///
/// ```
/// use grasp_core::sync::RequestBudget;
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
    /// More values than this no filter has, whatever is configured.
    pub const MAX_VALUES_PER_FILTER: usize = 1_000;
    /// The smallest filter that any value of ours fits into, written with nothing but six-byte escapes.
    pub const MIN_FILTER_BYTES: usize = 8 * 1024;

    /// Sets how many values a filter may have, from one to [`Self::MAX_VALUES_PER_FILTER`].
    #[must_use]
    pub fn with_values_per_filter(self, values: usize) -> Self {
        Self { values_per_filter: values.clamp(1, Self::MAX_VALUES_PER_FILTER), ..self }
    }

    /// The relay takes no longer filter. Stops at [`Self::MIN_FILTER_BYTES`].
    #[must_use]
    pub fn lowered_to_filter_bytes(self, bytes: usize) -> Self {
        Self { filter_bytes: self.filter_bytes.min(bytes).max(Self::MIN_FILTER_BYTES), ..self }
    }

    /// The relay takes no longer message. Stops where one filter of [`Self::MIN_FILTER_BYTES`] fits: who takes
    /// less could not take the events either.
    #[must_use]
    pub fn lowered_to_message_bytes(self, bytes: usize) -> Self {
        let least = Self::MIN_FILTER_BYTES + REQ_BYTES + 1;
        let message_bytes = self.message_bytes.min(bytes).max(least);
        let budget = self.lowered_to_filter_bytes(message_bytes - REQ_BYTES - 1);
        Self { message_bytes, ..budget }
    }

    /// The relay takes no more filters in one request. Stops at one.
    #[must_use]
    pub fn lowered_to_filters_per_req(self, filters: usize) -> Self {
        Self { filters_per_req: self.filters_per_req.min(filters).max(1), ..self }
    }

    /// How many values a filter may have.
    pub fn values_per_filter(&self) -> usize {
        self.values_per_filter
    }

    /// How long a filter may be, as JSON, with `since`, `until` and `limit`.
    pub fn filter_bytes(&self) -> usize {
        self.filter_bytes
    }

    /// How long a REQ may be, as JSON.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// How many filters a REQ may have.
    pub fn filters_per_req(&self) -> usize {
        self.filters_per_req
    }
}

impl Default for RequestBudget {
    /// 100 values and 32 KiB a filter, 10 filters and 96 KiB a request.
    fn default() -> Self {
        Self {
            values_per_filter: 100,
            filter_bytes: 32 * 1024,
            message_bytes: 96 * 1024,
            filters_per_req: 10,
        }
    }
}

/// `["REQ",""]` around the filters, with the longest subscription id that relays take; each filter adds a comma.
pub(super) const REQ_BYTES: usize = r#"["REQ",""]"#.len() + 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_message_means_smaller_filters_too() {
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
