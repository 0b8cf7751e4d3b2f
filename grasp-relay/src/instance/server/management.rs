//! Administration, built from the parts of a server.

use std::sync::Arc;

use super::CommonParts;
use crate::instance::error::{Explain as _, Result};
use crate::instance::overview::Overview;
use crate::management::rules::RightsFacts;
use crate::management::{Management, ManagementParts};

/// Creates the administration of a server.
pub(super) fn open(base: &CommonParts, overview: &Overview) -> Result<Management> {
    let proxies = base.settings.trusted_proxies.iter();
    let facts = RightsFacts {
        operator: base.settings.policy.operator,
        trusted_proxies: proxies.map(|range| range.network()).collect(),
        fixed: base.settings.fixed_texts.clone(),
        ..RightsFacts::of_service(base.keys.public_key())
    };
    let parts = ManagementParts {
        service: base.config.service.clone(),
        facts,
        store: base.policies.clone(),
        policy: Arc::clone(&base.policy),
        info: Arc::clone(&base.info),
        server: Arc::new(overview.clone()),
        node_key: base.config.node_key,
        clock: base.host.clock.clone(),
    };
    Management::new(parts).context("could not prepare administration")
}
