//! Reads any bytes as the command list of a push; only requested commands may be authorised.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::key::PublicKey;
use grasp_core::push::{CommandReader, KnownProposal, Progress, PushView, authorise};
use grasp_core::{Namespace, RefName};

pub(crate) fn run(data: &[u8]) {
    let Ok(Progress::Complete { request, .. }) = CommandReader::default().feed(data) else {
        return;
    };
    assert!(
        !request.commands().is_empty(),
        "an empty list is not a request"
    );
    let event = |name: &RefName| match name.namespace() {
        Namespace::Nostr(event) => Some((event, KnownProposal::Unknown)),
        _ => None,
    };
    let proposals = request
        .commands()
        .iter()
        .filter_map(|command| event(&command.name))
        .collect();
    let view = PushView {
        refs: &BTreeMap::new(),
        maintainers: &BTreeSet::from([PublicKey::from_byte_array([1; 32])]),
        candidates: &[],
        proposals: &proposals,
    };
    let verdict = authorise(&request, &view);
    let Some(authorised) = verdict.authorised else {
        return;
    };
    assert!(
        authorised.execute().is_empty(),
        "executed without a signed state"
    );
    assert!(
        authorised
            .stage()
            .iter()
            .all(|command| request.commands().contains(command))
    );
}
