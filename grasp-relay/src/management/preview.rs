//! What a change would do, said before it is made.

use crate::management::rules::Call;
use grasp_core::policy::PolicySubject;
use serde_json::{Value, json};

use super::{ChangeTarget, Footprint, Management};
use crate::web::{format_bytes, format_count};

impl Management {
    /// Says what a call would do.
    pub(super) async fn preview(&self, call: &Call) -> Result<Value, String> {
        let target = match call {
            Call::Add(_, subject, _) if takes_out_of_service(subject) => {
                ChangeTarget::Entry(subject.clone())
            }
            Call::HoldRepo(repo, _) => ChangeTarget::Repository(repo.clone()),
            _ => return Ok(json!({"text": call.method().info().help})),
        };
        let footprint = self.0.parts.server.footprint(target).await?;
        Ok(json!({"text": text_of(&footprint)}))
    }
}

fn takes_out_of_service(subject: &PolicySubject) -> bool {
    matches!(
        subject,
        PolicySubject::BannedAuthor(_)
            | PolicySubject::BannedRepo(_)
            | PolicySubject::BannedName(_)
            | PolicySubject::BannedEvent(_)
    )
}

fn text_of(footprint: &Footprint) -> String {
    let Footprint {
        repositories,
        events,
        bytes,
    } = *footprint;
    format!(
        "{}, {} and {} of git data go out of service; they can be restored for 90 days",
        format_count(repositories, "repository", "repositories"),
        format_count(events, "event", "events"),
        format_bytes(bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_says_what_goes_out_of_service() {
        let footprint = Footprint {
            repositories: 3,
            events: 1,
            bytes: 310 << 20,
        };
        assert_eq!(
            text_of(&footprint),
            "3 repositories, 1 event and 310.0 MiB of git data go out of service; they can be restored for 90 days"
        );
    }
}
