module github.com/retrip-go/retrip/storm

go 1.26.0

require (
	github.com/retrip-go/retrip v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/retrip-go/retrip => ../
