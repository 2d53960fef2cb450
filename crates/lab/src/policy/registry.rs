//! Table of policies: names, settings, and constructors.

use ebb_mm::nearest::nearest;
use ebb_mm::tunables::LruKind;

use super::engine::{self, Engine, EngineSettings};
use super::s3_fifo::{S3Fifo, Shares};
use super::{
    Footprint, Offline, Online, Replay, arc, belady, car, clock, clock_pro, dclock, fifo, lecar,
};
use super::{lirs, lru, sieve, two_q, w_tiny_lfu};

/// Invalid request for a policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("there is no policy {name:?}; the nearest is {nearest:?} (of {all})")]
    Unknown {
        /// Requested name.
        name: String,
        /// Most similar name.
        nearest: &'static str,
        /// All names.
        all: String,
    },
    /// No policy in the run has this setting.
    #[error("there is no setting {key:?}; the nearest is {nearest:?}")]
    UnknownKey {
        /// Requested key.
        key: String,
        /// Most similar key.
        nearest: String,
    },
    /// A setting has an impossible value.
    #[error("setting {key}={value}: expected {expected}")]
    BadValue {
        /// Key of the setting.
        key: String,
        /// Value in the setting.
        value: String,
        /// Description of the valid values.
        expected: String,
    },
    /// A setting is not of the form KEY=VALUE.
    #[error("setting {text:?}: expected KEY=VALUE, such as clock.bits=2")]
    NotASetting {
        /// Text of the setting.
        text: String,
    },
    /// A switch of the engine has an impossible value.
    #[error("setting {0}")]
    Engine(ebb_mm::tunables::SetError),
    /// The cache is too small for the policy.
    #[error("{policy} needs at least {least} pages of memory, not {given}")]
    TooSmall {
        /// Name of the policy.
        policy: &'static str,
        /// Smallest number of pages that the policy works with.
        least: u32,
        /// Requested number of pages.
        given: u32,
    },
}

/// Numeric parameter of a policy.
#[derive(Debug)]
pub struct Parameter {
    /// Name, after the policy's name and a dot.
    pub key: &'static str,
    /// Default value.
    pub default: f64,
    /// Least and greatest value.
    pub range: (f64, f64),
    /// Whether the value must be a whole number.
    pub whole: bool,
    /// Description in one line.
    pub about: &'static str,
}

/// One policy of the table.
#[derive(Debug)]
pub struct PolicyInfo {
    /// Name on the command line.
    pub name: &'static str,
    /// Other accepted spellings.
    pub aliases: &'static [&'static str],
    /// Description in one line.
    pub about: &'static str,
    /// Parameters of the policy.
    pub parameters: &'static [Parameter],
    /// Smallest number of pages that the policy works with.
    pub capacity_min: u32,
    /// Whether the policy needs the next access of each page.
    pub needs_future: bool,
    make: fn(Footprint<'_>, u32, &Values<'_>) -> Box<dyn Replay>,
}

/// Values of one policy's parameters.
struct Values<'a> {
    info: &'a PolicyInfo,
    settings: &'a Settings,
}

impl Values<'_> {
    fn get(&self, key: &str) -> f64 {
        self.settings.get(self.info.name, key).unwrap_or_else(|| {
            let parameter = self.info.parameters.iter().find(|parameter| parameter.key == key);
            parameter.unwrap_or_else(|| panic!("{} has no {key}", self.info.name)).default
        })
    }
}

/// Settings from the command line: `policy.key` and a number, or a switch of the engine.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    numbers: Vec<(&'static str, &'static str, f64)>,
    /// Switches of Ebb's own engine.
    pub engine: EngineSettings,
}

impl Settings {
    /// Parses `KEY=VALUE` texts; a later text with an equal key wins.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Self, PolicyError> {
        let mut settings = Self::default();
        for text in texts {
            let text = text.as_ref();
            let (key, value) = text
                .split_once('=')
                .ok_or_else(|| PolicyError::NotASetting { text: text.to_owned() })?;
            settings.set(key.trim(), value.trim())?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), PolicyError> {
        if EngineSettings::has(key) {
            return self.engine.set(key, value).map_err(PolicyError::Engine);
        }
        let known =
            || POLICIES.iter().flat_map(|info| info.parameters.iter().map(move |p| (info, p)));
        let full = |(info, p): (&PolicyInfo, &Parameter)| format!("{}.{}", info.name, p.key);
        let Some((info, parameter)) = known().find(|&pair| full(pair) == key) else {
            let keys = known().map(full).chain(EngineSettings::keys().map(str::to_owned));
            let nearest = nearest(key, keys).unwrap_or_default();
            return Err(PolicyError::UnknownKey { key: key.to_owned(), nearest });
        };
        let (low, high) = parameter.range;
        let number = value.parse::<f64>().ok().filter(|number| {
            (low..=high).contains(number) && (!parameter.whole || number.fract() == 0.0)
        });
        let Some(number) = number else {
            let kind = if parameter.whole { "a whole number" } else { "a number" };
            let expected = format!("{kind} from {low} to {high}: {}", parameter.about);
            let (key, value) = (key.to_owned(), value.to_owned());
            return Err(PolicyError::BadValue { key, value, expected });
        };
        self.numbers.retain(|&(policy, key, _)| (policy, key) != (info.name, parameter.key));
        self.numbers.push((info.name, parameter.key, number));
        Ok(())
    }

    fn get(&self, policy: &str, key: &str) -> Option<f64> {
        self.numbers.iter().find(|entry| (entry.0, entry.1) == (policy, key)).map(|entry| entry.2)
    }
}

impl PolicyInfo {
    /// Finds a policy by name or alias, ignoring case, `-` and `_`.
    pub fn find(name: &str) -> Result<&'static Self, PolicyError> {
        let wanted = plain(name);
        let found = POLICIES.iter().find(|info| {
            plain(info.name) == wanted || info.aliases.iter().any(|alias| plain(alias) == wanted)
        });
        found.ok_or_else(|| {
            let names = || POLICIES.iter().map(|info| info.name);
            PolicyError::Unknown {
                name: name.to_owned(),
                nearest: nearest(name, names()).unwrap_or("lru"),
                all: names().collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// Builds an empty cache of `capacity` pages over a footprint.
    pub fn build(
        &self,
        footprint: Footprint<'_>,
        capacity: u32,
        settings: &Settings,
    ) -> Result<Box<dyn Replay>, PolicyError> {
        if capacity < self.capacity_min {
            let (policy, least) = (self.name, self.capacity_min);
            return Err(PolicyError::TooSmall { policy, least, given: capacity });
        }
        Ok((self.make)(footprint, capacity, &Values { info: self, settings }))
    }
}

/// Parses a list such as `lru,arc`; `all` stands for every policy.
pub fn parse_list(text: &str) -> Result<Vec<&'static PolicyInfo>, PolicyError> {
    let mut list: Vec<&'static PolicyInfo> = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if name == "all" {
            list.extend(POLICIES);
        } else {
            list.push(PolicyInfo::find(name)?);
        }
    }
    let mut seen = Vec::new();
    list.retain(|info| {
        !seen.contains(&info.name) && {
            seen.push(info.name);
            true
        }
    });
    Ok(list)
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

const fn share(key: &'static str, default: f64, about: &'static str) -> Parameter {
    Parameter { key, default, range: (0.0, 1.0), whole: false, about }
}

const fn whole(
    key: &'static str,
    default: f64,
    range: (f64, f64),
    about: &'static str,
) -> Parameter {
    Parameter { key, default, range, whole: true, about }
}

/// Initial state of libCacheSim's random generator.
const LECAR_SEED: f64 = 0xdead_beef_u32 as f64;

const ROW: PolicyInfo = PolicyInfo {
    name: "",
    aliases: &[],
    about: "",
    parameters: &[],
    capacity_min: 1,
    needs_future: false,
    make: |footprint, capacity, _| Box::new(Online(lru::Lru::new(footprint.pages, capacity))),
};

/// All policies.
pub static POLICIES: &[PolicyInfo] = &[
    PolicyInfo {
        name: "gen",
        aliases: &["mglru"],
        about: "Ebb's multi-gen LRU, the engine of `ebb run`",
        capacity_min: engine::GEN_CAPACITY_MIN,
        make: |footprint, capacity, values| {
            Box::new(Engine::new(footprint, capacity, &values.settings.engine, LruKind::Gen))
        },
        ..ROW
    },
    PolicyInfo {
        name: "classic",
        about: "Ebb's active and inactive lists, with refault distance",
        capacity_min: engine::CLASSIC_CAPACITY_MIN,
        make: |footprint, capacity, values| {
            Box::new(Engine::new(footprint, capacity, &values.settings.engine, LruKind::Classic))
        },
        ..ROW
    },
    PolicyInfo {
        name: "fifo",
        about: "evicts in the order of arrival",
        make: |footprint, capacity, _| Box::new(Online(fifo::Fifo::new(footprint.pages, capacity))),
        ..ROW
    },
    PolicyInfo { name: "lru", about: "evicts the least recently used page", ..ROW },
    PolicyInfo {
        name: "clock",
        aliases: &["second-chance"],
        about: "FIFO with second chances",
        parameters: &[whole("bits", 1.0, (1.0, 7.0), "bits of the hit counter")],
        make: |footprint, capacity, values| {
            let bits = values.get("bits") as u32;
            Box::new(Online(clock::Clock::new(footprint.pages, capacity, bits)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "arc",
        about: "adaptive replacement cache: recency and frequency lists with ghosts",
        make: |footprint, capacity, _| Box::new(Online(arc::Arc::new(footprint.pages, capacity))),
        ..ROW
    },
    PolicyInfo {
        name: "car",
        about: "ARC with clocks",
        make: |footprint, capacity, _| Box::new(Online(car::Car::new(footprint.pages, capacity))),
        ..ROW
    },
    PolicyInfo {
        name: "lirs",
        about: "low inter-reference recency set",
        parameters: &[
            share("hir", 0.01, "share of the memory for HIR pages"),
            whole("phantoms", 0.0, (0.0, 1.0), "1: hold too much below 200 pages as libCacheSim"),
        ],
        capacity_min: 2,
        make: |footprint, capacity, values| {
            let (hir, phantoms) = (values.get("hir").min(0.99), values.get("phantoms") != 0.0);
            Box::new(Online(lirs::Lirs::new(footprint.pages, capacity, hir, phantoms)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "clock-pro",
        about: "LIRS as a clock with three hands",
        capacity_min: clock_pro::CAPACITY_MIN,
        make: |footprint, capacity, _| {
            Box::new(Online(clock_pro::ClockPro::new(footprint.pages, capacity)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "2q",
        aliases: &["two-q"],
        about: "a FIFO for new pages, an LRU list for pages that came back",
        parameters: &[
            share("in", 0.25, "share of the memory for the FIFO"),
            share("out", 0.5, "ghosts, as a share of the memory"),
        ],
        capacity_min: 4,
        make: |footprint, capacity, values| {
            let (share_in, share_out) = (values.get("in"), values.get("out"));
            Box::new(Online(two_q::TwoQ::new(footprint.pages, capacity, share_in, share_out)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "s3-fifo",
        about: "three static FIFOs: small, main, ghosts",
        parameters: &[
            share("small", 0.1, "share of the memory for the small FIFO"),
            share("ghost", 0.9, "ghosts, as a share of the memory"),
            whole("threshold", 2.0, (1.0, 3.0), "hits that take a page from small to main"),
        ],
        make: |footprint, capacity, values| {
            let shares = Shares {
                small: values.get("small"),
                ghost: values.get("ghost"),
                threshold: values.get("threshold") as u8,
            };
            Box::new(Online(S3Fifo::new(footprint.pages, capacity, shares)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "sieve",
        about: "FIFO with a hand that spares visited pages in place",
        make: |footprint, capacity, _| {
            Box::new(Online(sieve::Sieve::new(footprint.pages, capacity)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "w-tinylfu",
        aliases: &["tinylfu"],
        about: "an LRU window and a segmented LRU guarded by a frequency sketch",
        parameters: &[share("window", 0.01, "share of the memory for the window")],
        make: |footprint, capacity, values| {
            let window = values.get("window");
            Box::new(Online(w_tiny_lfu::WTinyLfu::new(footprint.pages, capacity, window)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "lecar",
        about: "LRU and LFU as experts with learnt weights",
        parameters: &[whole("seed", LECAR_SEED, (1.0, 1e15), "seed of its random choices")],
        make: |footprint, capacity, values| {
            let seed = values.get("seed") as u64;
            Box::new(Online(lecar::LeCar::new(footprint.pages, capacity, seed)))
        },
        ..ROW
    },
    PolicyInfo {
        name: "dclock",
        about: "a simple model of Linux's active and inactive lists",
        parameters: &[share("active", 0.5, "greatest share of the memory that is active")],
        capacity_min: 2,
        make: |footprint, capacity, values| {
            Box::new(Online(dclock::DClock::new(footprint.pages, capacity, values.get("active"))))
        },
        ..ROW
    },
    PolicyInfo {
        name: "belady",
        aliases: &["opt", "min"],
        about: "the optimum: evicts the page used farthest in the future",
        needs_future: true,
        make: |footprint, capacity, _| {
            Box::new(Offline(belady::Belady::new(footprint.pages, capacity)))
        },
        ..ROW
    },
];
