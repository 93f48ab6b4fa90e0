{{/*
The classes of the catalogue that are asked for. One that is there and is not this release's is left alone, since Helm
would refuse the whole release for it: NVIDIA's chart, for one, has gpu.nvidia.com and mig.nvidia.com too. `wanted` gives
the classes to make, `left` a line for each that is left. Without a cluster (`helm template`) nothing is there.
*/}}
{{- define "tesela.deviceClasses" -}}
{{- $ := index . 0 }}
{{- $which := index . 1 }}
{{- $files := list }}
{{- range $.Values.deviceClasses.families }}
{{- $files = append $files (printf "files/deviceclasses/profiles/%s.yaml" .) }}
{{- end }}
{{- range list "gpu" "mig" "enterprise" }}
{{- $files = append $files (printf "files/deviceclasses/%s.yaml" .) }}
{{- end }}
{{- range $files }}
{{- $general := not (contains "/profiles/" .) }}
{{- range (include "tesela.documents" (list $ .) | fromYaml).documents }}
{{- if or (not $general) (has .metadata.name $.Values.deviceClasses.general) }}
{{- $owner := include "tesela.otherOwner" (list $ .metadata.name) }}
{{- if and $owner (eq $which "left") }}
  {{ .metadata.name }} ({{ $owner }})
{{- else if and (not $owner) (eq $which "wanted") }}
---
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Who has a DeviceClass of this name, in words; nothing where nobody or this release has. */}}
{{- define "tesela.otherOwner" -}}
{{- $ := index . 0 }}
{{- if not ($.Capabilities.APIVersions.Has "resource.k8s.io/v1") }}
{{- fail "this cluster does not serve resource.k8s.io/v1: Kubernetes 1.34 or later has it, unless --runtime-config switches it off" }}
{{- end }}
{{- $class := lookup "resource.k8s.io/v1" "DeviceClass" "" (index . 1) }}
{{- if and $class (not $.Values.deviceClasses.takeOver) }}
{{- $annotations := $class.metadata.annotations | default dict }}
{{- $release := get $annotations "meta.helm.sh/release-name" }}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" }}
{{- if not $release }}not made by Helm
{{- else if not (and (eq $release $.Release.Name) (eq $namespace $.Release.Namespace)) }}of release {{ $release }} in namespace {{ $namespace }}
{{- end }}
{{- end }}
{{- end }}
