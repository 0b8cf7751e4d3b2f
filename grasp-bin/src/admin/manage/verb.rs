//! The commands of `grasp admin`, and the calls that they are.

mod change;
mod read;

use anyhow::Result;
use clap::Subcommand;
use grasp_relay::management::rules::{Method, Request};
use serde_json::Value;

use self::change::Change;
use self::read::Read;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    #[command(flatten)]
    Change(Change),
    #[command(flatten)]
    Read(Read),
}

impl Verb {
    /// Returns the calls that the command is.
    pub(super) fn calls(&self) -> Result<Vec<Request>> {
        match self {
            Self::Change(change) => Ok(vec![change.call()]),
            Self::Read(read) => read.calls(),
        }
    }
}

fn call(method: Method, params: Value) -> Request {
    Request {
        method: method.name().to_owned(),
        params: match params {
            Value::Array(params) => params,
            one => vec![one],
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use grasp_relay::management::rules::Call;
    use nostr::event::EventId;
    use serde_json::json;

    use super::change::BanSubject;
    use super::*;
    use crate::cli::{Cli, CliCommand};

    const NPUB: &str = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";

    fn calls(words: &str) -> Vec<Request> {
        let words = ["grasp", "admin"]
            .into_iter()
            .chain(words.split_whitespace());
        let cli = Cli::try_parse_from(words).unwrap();
        let CliCommand::Admin(args) = cli.command else {
            panic!("not grasp admin")
        };
        args.verb.calls().unwrap()
    }

    #[test]
    fn every_command_is_a_call_that_the_server_reads() {
        let repo = format!("{NPUB}/hello");
        for (words, method) in [
            (format!("ban {NPUB} --reason spam"), "banpubkey"),
            (format!("ban {repo}"), "grasp.banrepo"),
            ("ban hello".into(), "grasp.banrepo"),
            (format!("unban {NPUB}"), "unbanpubkey"),
            ("unban hello".into(), "grasp.unbanrepo"),
            (format!("allow {NPUB}"), "allowpubkey"),
            (format!("unallow {repo}"), "grasp.unallowrepo"),
            (format!("hold {repo} --reason copy"), "grasp.holdrepo"),
            (format!("restore {repo}"), "grasp.restorerepo"),
            ("held".into(), "grasp.listheld"),
            ("block 192.0.2.0/24".into(), "blockip"),
            ("unblock 192.0.2.1".into(), "unblockip"),
            ("blocked".into(), "listblockedips"),
            ("repos --state held --query x".into(), "grasp.listrepos"),
            (format!("repos --after {repo}"), "grasp.listrepos"),
            ("usage".into(), "grasp.getusage"),
            (format!("usage {NPUB}"), "grasp.getusage"),
            (format!("quota {NPUB} 2GiB"), "grasp.setquota"),
            (format!("quota {repo} none"), "grasp.setquota"),
            ("roles".into(), "grasp.listroles"),
            (format!("grant {NPUB} moderator"), "assignrole"),
            (format!("revoke {NPUB} moderator"), "unassignrole"),
            ("name mine".into(), "changerelayname"),
            ("description mine".into(), "changerelaydescription"),
            ("audit --limit 5".into(), "grasp.listaudit"),
            ("whoami".into(), "grasp.whoami"),
            ("preview grasp.whoami".into(), "grasp.preview"),
            ("call disallowkind [7]".into(), "disallowkind"),
        ] {
            let calls = calls(&words);
            assert_eq!(calls.len(), 1, "{words}");
            assert_eq!(calls[0].method, method, "{words}");
            let read = Call::parse(&calls[0].method, &calls[0].params);
            assert!(read.is_ok(), "{words}: {read:?}");
        }
        assert_eq!(calls("bans").len(), 3);
        assert_eq!(calls("allowed").len(), 2);
        let json = calls("audit --json --data-dir /x");
        assert_eq!(json[0].method, "grasp.listaudit");
    }

    #[test]
    fn an_event_is_banned_by_its_note() {
        let id = EventId::from_byte_array([7; 32]);
        let note = nostr::nips::nip19::ToBech32::to_bech32(&id).unwrap();
        let ban = calls(&format!("ban {note}"));
        assert_eq!(ban, [call(Method::BanEvent, json!([id.to_hex()]))]);
        let unban = calls(&format!("unban {note}"));
        assert_eq!(unban[0].method, "allowevent");
        assert!("note1x".parse::<BanSubject>().is_err());
    }
}
