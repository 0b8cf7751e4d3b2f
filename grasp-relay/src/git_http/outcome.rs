//! What has become of a push by the time that it is reported.
//!
//! Refs move first, then events are stored and uploads written down. Whatever of that did not happen is told: nobody
//! reads `ok` and finds later that nothing is served.

use std::collections::BTreeMap;

use grasp_core::push::{AuthorisedPush, PushCommand, PushVerdict, RefReport};
use grasp_core::{Oid, RefName};
use nostr::event::EventId;
use nostr::filter::Filter;

use super::HttpError;
use super::push::Push;

const UNSTORED: &str = "the server could not store the state event yet, and keeps trying";
const OVERTAKEN: &str = "the state event was replaced or deleted meanwhile";
const UNSTAGED: &str = "the upload could not be kept until its event comes";

/// What has become of a state that a push realised.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Realised {
    /// It is served.
    Served,
    /// It still waits: something of ours failed.
    Waits,
    /// It is neither here nor there.
    Gone,
}

impl Push {
    /// Corrects what a verdict promised by what is true now.
    pub(super) async fn correct(
        &self,
        reports: &mut [RefReport],
        verdict: &PushVerdict,
        push: &AuthorisedPush,
    ) -> Result<(), HttpError> {
        let refs = self.seat.repos.refs(&self.seat.repo).await?;
        let realised = match verdict.realises {
            Some(id) => self.realised(id).await?,
            None => Realised::Served,
        };
        for command in push.execute().iter().filter(|command| command.name.is_branch_or_tag()) {
            let refusal = match realised {
                Realised::Served => continue,
                Realised::Waits => UNSTORED,
                Realised::Gone if shows(&refs, command) => continue,
                Realised::Gone => OVERTAKEN,
            };
            refuse(reports, &command.name, refusal);
        }
        for command in push.stage() {
            if !shows(&refs, command) && !self.is_kept(command).await? {
                refuse(reports, &command.name, UNSTAGED);
            }
        }
        Ok(())
    }

    async fn realised(&self, id: EventId) -> Result<Realised, HttpError> {
        if self.git.keeper.ask(move |purgatory| purgatory.holds(&id)).await? {
            return Ok(Realised::Waits);
        }
        let (store, now) = (self.git.keeper.store(), self.git.keeper.clock().now().unix);
        let found = store.exists(vec![vec![Filter::new().id(id)]], now).await?;
        Ok(if found.contains(&true) { Realised::Served } else { Realised::Gone })
    }

    /// Whether an upload waits for its event, as far as purgatory knows.
    async fn is_kept(&self, command: &PushCommand) -> Result<bool, HttpError> {
        let (Some(id), Some(tip)) = (command.name.event(), command.new) else {
            return Ok(false);
        };
        Ok(self.git.keeper.ask(move |purgatory| purgatory.keeps_upload(&id, &tip)).await?)
    }
}

fn shows(refs: &BTreeMap<RefName, Oid>, command: &PushCommand) -> bool {
    refs.get(&command.name).copied() == command.new
}

fn refuse(reports: &mut [RefReport], name: &RefName, why: &str) {
    for report in reports.iter_mut().filter(|report| report.name == *name) {
        report.refusal = Some(String::from(why));
    }
}
