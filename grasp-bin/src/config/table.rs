//! Every setting, defined once.

/// Settings of one table of the file.
///
/// `name: Codec, "what it does";` is the field of that name below the place given after `at`. The field may be another
/// one: `name (field): …`; the form may be better known: `name: Codec as "FORM", …`; `@common` marks what most
/// operators set.
macro_rules! settings {
    (
        $prefix:literal at $place:tt;
        $($(@$common:ident)? $name:ident $(($($field:tt)+))?: $codec:ty $(as $form:literal)?, $doc:literal;)*
    ) => {
        &[$($crate::config::table::Setting {
            key: concat!($prefix, stringify!($name)),
            form: settings!(@form $codec; $($form)?),
            many: <$codec as $crate::config::codec::Form>::MANY,
            common: settings!(@common $($common)?),
            doc: $doc,
            read: |config, texts| {
                settings!(@path config $place $name $(($($field)+))?) =
                    <$codec as $crate::config::codec::Codec<_>>::read(texts)?;
                Ok(())
            },
            show: |config| <$codec as $crate::config::codec::Codec<_>>::show(
                &settings!(@path config $place $name $(($($field)+))?)
            ),
        }),*]
    };
    (@common) => { false };
    (@common common) => { true };
    (@form $codec:ty;) => { <$codec as $crate::config::codec::Form>::FORM };
    (@form $codec:ty; $form:literal) => { $form };
    (@path $config:ident [$($place:ident).*] $name:ident) => { $config.$($place.)*$name };
    (@path $config:ident [$($place:ident).*] $name:ident ($($field:tt)+)) => {
        $config.$($place.)*$($field)+
    };
}

mod git;
mod instance;
mod relay;
mod sync;

use super::Config;
use super::codec::{Form as _, Switch};

/// One thing that can be set.
pub(crate) struct Setting {
    /// Its name in the file, as `relay.event_bytes`.
    pub(crate) key: &'static str,
    /// What to write.
    pub(crate) form: &'static str,
    /// Whether there may be any number of values.
    pub(crate) many: bool,
    /// Whether it is one that most operators set, rather than one that few ever touch.
    pub(crate) common: bool,
    /// What it does.
    pub(crate) doc: &'static str,
    /// Sets it.
    pub(crate) read: fn(&mut Config, &[String]) -> Result<(), String>,
    /// What it is set to, as it could have been given; nothing if it is not set.
    pub(crate) show: fn(&Config) -> Vec<String>,
}

/// Settings that belong together: a table of the file.
pub(crate) struct Section {
    /// The table's name; empty for the top of the file.
    pub(crate) name: &'static str,
    /// What they are about.
    pub(crate) title: &'static str,
    /// The settings, by what they are made into.
    groups: &'static [&'static [Setting]],
}

/// The sections in the order of the reference.
pub(crate) const SECTIONS: &[Section] = &[
    Section { name: "", title: "The instance", groups: &[instance::PROCESS, instance::SERVER] },
    Section {
        name: "about",
        title: "What it says about itself (NIP-11)",
        groups: &[instance::ABOUT],
    },
    Section { name: "log", title: "What it tells, on standard error", groups: &[instance::LOG] },
    Section { name: "bans", title: "Who and what is not welcome", groups: &[instance::BANS] },
    Section {
        name: "archive",
        title: "Repositories kept although they do not list this instance (GRASP-05)",
        groups: &[instance::ARCHIVE],
    },
    Section {
        name: "sync",
        title: "Events from other relays (GRASP-02)",
        groups: &[sync::SYNC, sync::ENGINE, sync::LIMITS],
    },
    Section {
        name: "hunt",
        title: "Git data from other servers (GRASP-02)",
        groups: &[sync::HUNT, sync::FETCH],
    },
    Section {
        name: "sidecar",
        title: "For `grasp sidecar`, beside a relay of another kind",
        groups: &[instance::SIDECAR],
    },
    Section {
        name: "purgatory",
        title: "Events that wait for their git data",
        groups: &[git::PURGATORY],
    },
    Section {
        name: "git",
        title: "The git host",
        groups: &[git::GIT, git::PLACES, git::PROCESSES, git::STAGING],
    },
    Section { name: "sqlite", title: "The event store of our own", groups: &[git::SQLITE] },
    Section {
        name: "relay",
        title: "What one client, and all together, may ask",
        groups: &[relay::RELAY, relay::RELATED],
    },
];

/// Every setting.
pub(crate) fn all() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(Section::settings)
}

/// The setting of a name.
pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    all().find(|setting| setting.key == key)
}

impl Section {
    /// The settings.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &'static Setting> + use<> {
        self.groups.iter().copied().flatten()
    }
}

impl Setting {
    /// The environment variable, as `GRASP_RELAY_EVENT_BYTES`.
    pub(crate) fn variable(&self) -> String {
        format!("{}{}", super::layers::PREFIX, self.key.replace('.', "_").to_ascii_uppercase())
    }

    /// The flag without its dashes, as `relay-event-bytes`.
    pub(crate) fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    /// Whether it is a mere yes or no.
    pub(crate) fn is_switch(&self) -> bool {
        self.form == Switch::FORM
    }
}
