//! TLS to servers, which is left out of a build without the feature `tls`.

use redis::{Client, ConnectionInfo, RedisResult};

#[cfg(feature = "tls")]
pub(super) use with::{client, prepare};
#[cfg(not(feature = "tls"))]
pub(super) use without::{client, prepare};

#[cfg(feature = "tls")]
mod with {
    use super::{Client, ConnectionInfo, RedisResult};
    use redis::TlsCertificates;
    use std::sync::Once;

    /// TLS needs to know by which code, once in a process.
    pub fn prepare() -> Result<(), String> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // Refused if there is one already, which then serves.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        Ok(())
    }

    /// A client that trusts the certificates `ca`, or the system's.
    pub fn client(info: ConnectionInfo, ca: Option<&[u8]>) -> RedisResult<Client> {
        match ca {
            Some(ca) => {
                let root_cert = Some(ca.to_vec());
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
            None => Client::open(info),
        }
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use super::{Client, ConnectionInfo, RedisResult};

    pub fn prepare() -> Result<(), String> {
        Err("this ebb was built without TLS; build it with: cargo build --release --package ebb-run"
            .into())
    }

    /// `ca` is of TLS alone, which was refused.
    pub fn client(info: ConnectionInfo, _ca: Option<&[u8]>) -> RedisResult<Client> {
        Client::open(info)
    }
}
