//! How the store tells the user what concerns no single page: a server that is away.

use std::fmt;
use std::sync::Arc;

/// Takes a line for the user; at first nobody's.
#[derive(Clone, Default)]
pub struct Notice(Option<Arc<Say>>);

type Say = dyn Fn(&str) + Send + Sync;

impl Notice {
    /// Lines go to `say`, from any thread. It must not call the store.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(say)))
    }

    pub(crate) fn say(&self, text: &str) {
        if let Some(say) = &self.0 {
            say(text);
        }
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}
