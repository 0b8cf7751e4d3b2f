//! What git itself says about a push that it executed.

use std::collections::BTreeMap;

use super::pktline::{Pkt, read_pkt};
use crate::repo::RefName;

/// Git's own report on the commands it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GitOutcome {
    /// The objects were taken; what became of each ref.
    Unpacked(BTreeMap<RefName, Option<String>>),
    /// The objects were not taken.
    Unusable(String),
}

/// The report was cut off or is no report; whatever happened, it was not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("git gave no complete report")]
pub struct NoReport;

impl GitOutcome {
    /// Reads a report without side-band. Only one that ends properly counts.
    pub fn parse(report: &[u8]) -> Result<Self, NoReport> {
        let mut lines = Vec::new();
        let mut rest = report;
        loop {
            match read_pkt(rest).map_err(|_| NoReport)? {
                Some((Pkt::Data(line), after)) => {
                    lines.push(std::str::from_utf8(line).map_err(|_| NoReport)?.trim_end());
                    rest = after;
                }
                Some((Pkt::Flush, _)) => break,
                Some(_) | None => return Err(NoReport),
            }
        }
        let mut lines = lines.into_iter();
        match lines.next().and_then(|line| line.strip_prefix("unpack ")) {
            Some("ok") => {}
            Some(why) => return Ok(Self::Unusable(why.to_owned())),
            None => return Err(NoReport),
        }
        // Lines of the newer report that only explain the one before begin with `option `.
        lines
            .filter(|line| !line.starts_with("option "))
            .map(ref_line)
            .collect::<Option<_>>()
            .map(Self::Unpacked)
            .ok_or(NoReport)
    }

    /// Why a ref did not move, or `None` if it did; a ref that git does not speak of did not.
    pub fn refusal(&self, name: &RefName) -> Option<String> {
        match self {
            Self::Unpacked(refs) => match refs.get(name) {
                Some(refusal) => refusal.clone(),
                None => Some("git did not say".to_owned()),
            },
            Self::Unusable(why) => Some(why.clone()),
        }
    }

    /// Whether everything git was asked for was done.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Unpacked(refs) if refs.values().all(Option::is_none))
    }
}

fn ref_line(line: &str) -> Option<(RefName, Option<String>)> {
    if let Some(name) = line.strip_prefix("ok ") {
        return Some((name.parse().ok()?, None));
    }
    let (name, why) = line.strip_prefix("ng ")?.split_once(' ')?;
    Some((name.parse().ok()?, Some(why.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::encode_pkt;

    fn report(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        lines.iter().for_each(|line| encode_pkt(format!("{line}\n").as_bytes(), &mut bytes));
        bytes.extend_from_slice(b"0000");
        bytes
    }

    #[test]
    fn each_ref_has_its_outcome() {
        let bytes = report(&[
            "unpack ok",
            "ok refs/heads/a",
            "option old-oid x",
            "ng refs/heads/b failed to update ref",
        ]);
        let outcome = GitOutcome::parse(&bytes).unwrap();
        let name = |text: &str| text.parse::<RefName>().unwrap();
        assert!(!outcome.is_success());
        assert_eq!(outcome.refusal(&name("refs/heads/a")), None);
        assert_eq!(outcome.refusal(&name("refs/heads/b")).as_deref(), Some("failed to update ref"));
        assert!(outcome.refusal(&name("refs/heads/c")).is_some());
    }

    #[test]
    fn objects_that_git_does_not_take_move_nothing() {
        let outcome = GitOutcome::parse(&report(&["unpack index-pack abnormal exit"])).unwrap();
        assert_eq!(outcome, GitOutcome::Unusable("index-pack abnormal exit".into()));
        assert!(!outcome.is_success());
    }

    #[test]
    fn a_report_that_was_cut_off_is_none() {
        let whole = report(&["unpack ok", "ok refs/heads/a"]);
        for end in 0..whole.len() {
            assert_eq!(GitOutcome::parse(&whole[..end]), Err(NoReport));
        }
        assert_eq!(GitOutcome::parse(&report(&["hello"])), Err(NoReport));
        assert_eq!(
            GitOutcome::parse(&report(&["unpack ok", "perhaps refs/heads/a"])),
            Err(NoReport)
        );
    }
}
