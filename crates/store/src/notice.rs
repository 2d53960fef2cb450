//! Messages of the store to the user that concern no single page: a server does not answer.

use std::fmt;
use std::sync::Arc;

/// Receiver of lines for the user. The default drops them.
#[derive(Clone, Default)]
pub struct Notice(Option<Arc<Say>>);

type Say = dyn Fn(&str) + Send + Sync;

impl Notice {
    /// Creates a receiver that calls `say` with each line, from any thread. `say` must not call the
    /// store.
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
