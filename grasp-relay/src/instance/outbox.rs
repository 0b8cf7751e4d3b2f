//! Whether the relays of users are asked, too (GRASP-03), and which relays know of users.

use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_sync::outbox::OutboxConfig;

use crate::instance::settings::Settings;

/// When the relays of users are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutboxMode {
    /// If the server has a public address and is not private.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Settings of asking the relays of users.
#[derive(Clone, Debug)]
pub struct OutboxSettings {
    /// When they are asked.
    pub mode: OutboxMode,
    /// Relays that collect the relay lists of all users. They are told who the service is, unless these are the default.
    pub index_relays: Option<Vec<RelayUrl>>,
    /// Relays that are asked for users without a relay list.
    pub fallback_relays: Vec<RelayUrl>,
    /// The time between two passes.
    pub pass: Duration,
}

/// Public relays that collect the relay lists of all users.
const INDEX_RELAYS: [&str; 3] = [
    "wss://purplepag.es",
    "wss://index.hzrd149.com",
    "wss://indexer.coracle.social",
];

fn default_index_relays() -> Vec<RelayUrl> {
    INDEX_RELAYS.iter().flat_map(|url| url.parse()).collect()
}

impl Default for OutboxSettings {
    fn default() -> Self {
        Self {
            mode: OutboxMode::default(),
            index_relays: None,
            fallback_relays: Vec::new(),
            pass: Duration::from_secs(60),
        }
    }
}

impl OutboxSettings {
    /// Returns a setting that cannot be used as it is, and why.
    pub(crate) fn contradiction(
        &self,
        settings: &Settings,
    ) -> Option<(&'static str, &'static str)> {
        if self.mode != OutboxMode::On {
            None
        } else if settings.private.enabled {
            let reason = "a private service tells no other relay what it has: remove that setting";
            Some(("sync.outbox", reason))
        } else if !settings.sync.enabled {
            Some(("sync.outbox", "it needs sync.enabled"))
        } else {
            None
        }
    }
}

impl Settings {
    /// Returns whether the relays of users are asked.
    pub(crate) fn runs_outbox(&self) -> bool {
        if !self.sync.enabled || self.private.enabled {
            return false;
        }
        match self.sync.outbox.mode {
            OutboxMode::On => true,
            OutboxMode::Off => false,
            OutboxMode::Auto => {
                let host = self.policy.service.authority().parse();
                let policy = OutboundPolicy::default();
                host.is_ok_and(|host| policy.judge_host(Provenance::Event, &host).is_ok())
            }
        }
    }

    /// Returns the index relays that learn who the service is: those that the operator listed, if the relays of users are
    /// asked.
    pub(crate) fn listed_index_relays(&self) -> Vec<RelayUrl> {
        let listed = self.sync.outbox.index_relays.clone();
        listed.filter(|_| self.runs_outbox()).unwrap_or_default()
    }

    /// Returns the settings of asking the relays of users, if they are asked.
    pub(crate) fn outbox(&self) -> Option<OutboxConfig> {
        if !self.runs_outbox() {
            return None;
        }
        let settings = &self.sync.outbox;
        let mut config = OutboxConfig::new(self.sync.engine.own.clone());
        config.index_relays = settings
            .index_relays
            .clone()
            .unwrap_or_else(default_index_relays);
        config.fallback_relays.clone_from(&settings.fallback_relays);
        config.pass = settings.pass;
        Some(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(domain: &str) -> Settings {
        Settings::new(domain.parse().unwrap(), "/nowhere")
    }

    fn is_advertised(settings: &Settings) -> bool {
        let grasps = settings.public_info().supported_grasps;
        grasps.iter().any(|grasp| grasp == "GRASP-03")
    }

    #[test]
    fn servers_with_a_public_address_ask_the_relays_of_users() {
        for (domain, runs) in [
            ("git.example.com", true),
            ("git.example.com:8443/mount", true),
            ("1.1.1.1", true),
            ("127.0.0.1:7334", false),
            ("[::1]:7334", false),
            ("10.0.0.7", false),
            ("localhost", false),
            ("hidden.onion", false),
            ("grasp.local", false),
        ] {
            let mut settings = settings(domain);
            assert_eq!(settings.runs_outbox(), runs, "{domain}");
            assert_eq!(settings.outbox().is_some(), runs, "{domain}");
            assert_eq!(is_advertised(&settings), runs, "{domain}");
            settings.sync.outbox.mode = OutboxMode::On;
            assert!(settings.runs_outbox(), "{domain}");
            settings.sync.outbox.mode = OutboxMode::Off;
            assert!(!settings.runs_outbox(), "{domain}");
        }
    }

    #[test]
    fn a_private_service_and_one_without_sync_never_do() {
        for mode in [OutboxMode::Auto, OutboxMode::On, OutboxMode::Off] {
            let mut private = settings("git.example.com");
            private.private.enabled = true;
            let mut alone = settings("git.example.com");
            alone.sync.enabled = false;
            for mut settings in [private, alone] {
                settings.sync.outbox.mode = mode;
                assert!(!settings.runs_outbox() && !is_advertised(&settings));
                let contradiction = settings.sync.outbox.contradiction(&settings);
                assert_eq!(contradiction.is_some(), mode == OutboxMode::On);
            }
        }
        let public = settings("git.example.com");
        assert_eq!(public.sync.outbox.contradiction(&public), None);
    }

    #[test]
    fn all_index_relays_are_addresses() {
        assert_eq!(default_index_relays().len(), INDEX_RELAYS.len());
    }

    #[test]
    fn only_index_relays_that_the_operator_lists_are_told_who_the_service_is() {
        let mut settings = settings("git.example.com");
        let asked = |settings: &Settings| settings.outbox().unwrap().index_relays;
        assert_eq!(settings.listed_index_relays(), []);
        assert_eq!(asked(&settings), default_index_relays());
        let listed: Vec<RelayUrl> = vec!["wss://index.example.com".parse().unwrap()];
        for listed in [listed, Vec::new()] {
            settings.sync.outbox.index_relays = Some(listed.clone());
            assert_eq!(settings.listed_index_relays(), listed);
            assert_eq!(asked(&settings), listed);
        }
    }
}
