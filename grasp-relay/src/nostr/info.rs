//! What the server says about itself: the settings, continued by what operators change while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::management::rules::RelayText;
use tokio::sync::watch;

use super::RelayInfo;

/// The NIP of administration by key.
const MANAGEMENT: u16 = 86;

/// The owner of the server's description of itself: each change is in force at once.
#[derive(Debug)]
pub struct InfoOwner {
    /// What the settings say.
    settings: RelayInfo,
    current: watch::Sender<Arc<RelayInfo>>,
}

impl InfoOwner {
    /// Creates a description that is what the settings say.
    pub fn new(settings: RelayInfo) -> Self {
        let current = watch::Sender::new(Arc::new(settings.clone()));
        Self { settings, current }
    }

    /// Returns the description for reading.
    pub fn live(&self) -> LiveInfo {
        LiveInfo(self.current.subscribe())
    }

    /// Replaces texts of the settings, and says whether the server can be administrated by key.
    pub fn replace(&self, texts: &BTreeMap<RelayText, String>, has_managers: bool) {
        let mut info = self.settings.clone();
        for (text, value) in texts {
            let value = value.clone();
            match text {
                RelayText::Name => info.name = value,
                RelayText::Description => info.description = value,
                RelayText::Icon => info.icon = Some(value),
            }
        }
        if has_managers && !info.supported_nips.contains(&MANAGEMENT) {
            info.supported_nips.push(MANAGEMENT);
            info.supported_nips.sort_unstable();
        }
        self.current.send_if_modified(|current| {
            let is_other = **current != info;
            if is_other {
                *current = Arc::new(info);
            }
            is_other
        });
    }
}

/// What the server says about itself at this moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LiveInfo(watch::Receiver<Arc<RelayInfo>>);

impl LiveInfo {
    /// Returns a description that never changes.
    pub fn fixed(info: RelayInfo) -> Self {
        InfoOwner::new(info).live()
    }

    /// Returns the description. One answer uses one of them.
    pub fn now(&self) -> Arc<RelayInfo> {
        Arc::clone(&self.0.borrow())
    }
}

impl Default for LiveInfo {
    fn default() -> Self {
        Self::fixed(RelayInfo::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_replace_those_of_the_settings_until_they_are_taken_back() {
        let owner = InfoOwner::new(RelayInfo {
            name: "of the settings".into(),
            ..RelayInfo::default()
        });
        let live = owner.live();
        let before = live.now();
        let changed = [
            (RelayText::Name, "changed".to_owned()),
            (RelayText::Icon, "https://example.com/a.png".to_owned()),
        ];
        owner.replace(&changed.into(), false);
        assert_eq!(before.name, "of the settings");
        assert_eq!(live.now().name, "changed");
        assert_eq!(live.now().description, before.description);
        assert_eq!(
            live.now().icon.as_deref(),
            Some("https://example.com/a.png")
        );
        owner.replace(&BTreeMap::new(), false);
        assert_eq!(live.now(), before);
    }

    #[test]
    fn administration_is_advertised_where_somebody_may_call() {
        let owner = InfoOwner::new(RelayInfo::default());
        let live = owner.live();
        assert!(!live.now().supported_nips.contains(&86));
        owner.replace(&BTreeMap::new(), true);
        owner.replace(&BTreeMap::new(), true);
        let nips = &live.now().supported_nips;
        assert_eq!(nips.iter().filter(|nip| **nip == 86).count(), 1);
        assert!(nips.is_sorted());
    }
}
