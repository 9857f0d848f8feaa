"use strict";
(() => {
	const live = document.getElementById("live");
	const filter = document.getElementById("filter");
	let stream, watchdog;

	// Parts of the page come as HTML by the ids that they replace. What a reader has opened
	// stays open, and the focus stays where it is.
	const apply = ({parts, order}) => {
		const focused = document.activeElement?.closest("tr")?.id;
		const made = new Map();
		for (const [id, html] of Object.entries(parts)) {
			const template = document.createElement("template");
			template.innerHTML = html;
			const fresh = template.content.firstElementChild;
			const old = document.getElementById(id);
			if (!old) {
				made.set(id, fresh);
				continue;
			}
			if (old.querySelector("details")?.open) {
				fresh.querySelector("details")?.setAttribute("open", "");
			}
			old.replaceWith(fresh);
		}
		for (const [id, rows] of Object.entries(order ?? {})) {
			document.getElementById(id)?.replaceChildren(...rows.map((row) => made.get(row) ?? document.getElementById(row)).filter(Boolean));
		}
		if (focused && !document.activeElement?.closest("tr")) {
			document.getElementById(focused)?.querySelector("summary")?.focus({preventScroll: true});
		}
	};

	const reload = () => {
		stream?.close();
		live.textContent = "reloaded every 5 s";
		setTimeout(() => location.reload(), 5000);
	};

	// A stream that is refused, or held back by something between, is given up for reloading.
	const connect = () => {
		stream?.close();
		clearTimeout(watchdog);
		const address = new URL(location.href);
		address.searchParams.set("stream", "");
		stream = new EventSource(address);
		watchdog = setTimeout(reload, 10000);
		stream.onmessage = (event) => {
			clearTimeout(watchdog);
			apply(JSON.parse(event.data));
			live.textContent = "live";
		};
		stream.onerror = () => {
			if (stream.readyState === EventSource.CLOSED) {
				clearTimeout(watchdog);
				reload();
				return;
			}
			live.textContent = "connecting again";
		};
	};

	// The links of the page keep the filter.
	const relink = (address) => {
		for (const link of document.querySelectorAll("thead a, nav a")) {
			const to = new URL(link.href);
			for (const name of ["host", "state"]) {
				to.searchParams.delete(name);
				if (address.searchParams.has(name)) {
					to.searchParams.set(name, address.searchParams.get(name));
				}
			}
			link.href = to;
		}
	};

	// The table follows the filter as it is typed.
	let typing;
	filter.addEventListener("input", () => {
		clearTimeout(typing);
		typing = setTimeout(() => {
			const address = new URL(location.href);
			address.search = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
			history.replaceState(null, "", address);
			relink(address);
			connect();
		}, 200);
	});
	addEventListener("pagehide", () => stream?.close());
	addEventListener("pageshow", (event) => event.persisted && connect());
	connect();
})();
